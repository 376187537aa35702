"""Where one worker has its weights on the host, all average there; each fit chooses anew."""

from keras_preamble import *

on_device = type(backends.current()).gradient_device
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1)))
x, y = data(16, seed=rank)
for there in (True, False, True):
    type(backends.current()).gradient_device = on_device if there or rank else lambda backend, model: None
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=distribute())
    assert model.optimizer.gradient_average.on_device == there
    same_everywhere(model)
