import numpy as np

from keras_preamble import DistributedOptimizer, data, dense, distribute, everyones, flat, keras, shard, size, worker

x, y = data(8 * size * 4)


def made(wrap):
    model = dense(units=(400, 3))
    model.get_layer("hidden").enable_lora(2)
    model.compile(wrap(keras.optimizers.SGD(0.5, momentum=0.9)), "categorical_crossentropy")
    return model


one, model = made(lambda optimizer: optimizer), made(DistributedOptimizer)
start = one.get_weights()
one.fit(x, y, batch_size=8 * size, epochs=2, shuffle=False, verbose=0)
sent, all_reduce = [], worker.all_reduce


def counted(array, *args, **options):
    sent.append(np.prod(array.shape))
    return all_reduce(array, *args, **options)


worker.all_reduce = counted
model.fit(*shard(x, y), batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=distribute())
assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-5
assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
assert abs(flat(one.get_weights()) - flat(start)).max() > 0.02
trained = sum(np.prod(weight.shape) for weight in model.trainable_variables)
assert trained == 6 * 2 + 2 * 400 + 400 + 400 * 3 + 3  # without the kernel of 6 times 400
assert trained <= max(sent) < trained + 100, (trained, sent)  # with flags and weights of the ranks
