from keras_preamble import *

x, y = data(96)
backend = keras.backend.backend()
ways = [{"run_eagerly": True}] + ([] if backend == "torch" else [{"steps_per_execution": 4}])
for options in ways:
    for averaged in (False, True):
        sgd = keras.optimizers.SGD(0.1)
        model = dense(optimizer=DistributedOptimizer(sgd) if averaged else sgd, **options)
        watch = Watch(batch_end=lambda callback, batch: rank == len(callback.epochs) == 1 and stop(callback))
        callbacks = distribute([watch], every_n_batches=3)
        model.fit(*shard(x, y), epochs=4, batch_size=4, verbose=0, callbacks=callbacks)
        assert watch.epochs == [0, 1]
        same_everywhere(model)
        one = dense(optimizer=keras.optimizers.SGD(0.1)).evaluate(x, y, verbose=0)
        assert min(logs["loss"] for logs in watch.logs) < one[0]

if backend != "torch":  # Keras passes index 11 for the last of 9 batches; 9 were trained.
    model = dense(optimizer=keras.optimizers.SGD(0.1), steps_per_execution=4)
    counted = worker.advanced.activity[0]
    part = shard(x, y)
    model.fit(part[0][:36], part[1][:36], epochs=2, batch_size=4, verbose=0, callbacks=distribute(every_n_batches=3))
    assert worker.advanced.activity[0] - counted == int(model.optimizer.iterations) == 18


class Mine(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = L.Dense(3)

    def call(self, x):
        return self.out(x)

    def train_step(self, *args):
        logs = {"loss": keras.ops.zeros(())}
        return (logs, args[0]) if backend == "jax" else logs


careless = Mine()
careless(x[:2])
careless.compile(DistributedOptimizer("sgd"), loss="mse")
inner = DistributedOptimizer(keras.optimizers.SGD(0.1))
wrong = dense(optimizer=keras.optimizers.MultiOptimizer(lambda variable: inner))
unbuilt = keras.Sequential([L.Dense(3)])
unbuilt.compile("sgd", "mse")
for model, complaint in [(wrong, "other way round"), (careless, "were not averaged")] + (
    [(unbuilt, "put keras.Input")] if backend == "tensorflow" else []
):
    with raises(PlatoonError, complaint):
        model.fit(*shard(x, y), verbose=0, callbacks=distribute())
if backend != "tensorflow":
    unbuilt.fit(*shard(x, y), verbose=0, callbacks=distribute())
    same_everywhere(unbuilt)
