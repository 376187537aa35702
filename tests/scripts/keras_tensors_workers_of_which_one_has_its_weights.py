from keras_preamble import DistributedOptimizer, data, dense, distribute, everyones, flat, keras, rank

import torch
from platoon_plugins.keras import backends

type(backends.current()).gradient_device = lambda backend, model: torch.device("cpu") if rank else None
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1)))
x, y = data(8)
model.fit(x, y, batch_size=4, verbose=0, callbacks=distribute())
assert not model.optimizer.gradient_average.on_device
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
