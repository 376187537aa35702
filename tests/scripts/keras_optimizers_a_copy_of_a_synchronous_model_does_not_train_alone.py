from keras_preamble import *

x, y = data(8 * size * 2)
sgd = keras.optimizers.SGD
scaled = lambda: keras.optimizers.LossScaleOptimizer(sgd())


def loaded(optimizer):
    path = os.path.join(sys.argv[1], f"model{rank}.keras")
    dense(optimizer=DistributedOptimizer(optimizer)).save(path)
    return keras.models.load_model(path)


for optimizer in (sgd, scaled):
    for train in (lambda model: model.fit(*shard(x, y), verbose=0), lambda model: model.train_on_batch(x, y)):
        with raises(PlatoonError, "a copy of a DistributedOptimizer", "callbacks=distribute()"):
            train(loaded(optimizer()))
    model = loaded(optimizer())
    broadcast_variables(model)
    own = x[rank::size], y[rank::size]
    model.train_on_batch(*own)
    same_everywhere(model)
model = loaded(sgd())
with raises(PlatoonError):
    model.fit(*shard(x, y), verbose=0, callbacks=distribute(rule=EASGD(), every_n_batches=10 + rank))
assert model.optimizer.name.startswith("distributed_")  # as no rule has trained it
model.fit(*shard(x, y), verbose=0, callbacks=distribute(rule=EASGD()))
assert not model.optimizer.name.startswith("distributed_")
copy = keras.models.clone_model(model)
copy.compile(model.optimizer.from_config(model.optimizer.get_config()), loss="categorical_crossentropy")
copy.train_on_batch(*own)
model = loaded(sgd())
model.optimizer.name = "mine"
model.train_on_batch(*own)
