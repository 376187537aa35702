from keras_preamble import DistributedOptimizer, data, dense, distribute, keras, rank

import torch
from platoon_plugins.keras.gradients import Batch

model = dense()
optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1))
model.compile(optimizer, "mse")
x, y = data(8)
model.fit(x, y, batch_size=4, verbose=0, callbacks=distribute())
average = optimizer.gradient_average
average.attach("any", [weight.numpy() for weight in model.trainable_weights])
for shapes in ([(3,)], [(2, 2)] * 7):
    means = average.average(Batch([torch.full(shape, rank + 1.0) for shape in shapes], 4.0, [True] * len(shapes)))
    assert [tuple(mean.shape) for mean in means] == shapes and all((mean == 1.5).all() for mean in means)
