from keras_preamble import *
import torch

type(backends.current()).gradient_device = lambda backend, model: torch.device("cpu") if rank else None
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1)))
x, y = data(8)
model.fit(x, y, batch_size=4, verbose=0, callbacks=distribute())
assert not model.optimizer.gradient_average.on_device
same_everywhere(model)
