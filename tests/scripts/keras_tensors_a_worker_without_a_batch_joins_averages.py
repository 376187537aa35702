import numpy as np

from keras_preamble import rank, worker

import torch
from platoon_plugins.keras import backends
from platoon_plugins.keras.gradients import Batch
from platoon_plugins.keras.model_averages import ModelAverages

weights = [torch.nn.Parameter(torch.ones(200)), torch.nn.Parameter(torch.ones(300))]
average = backends.current().average(worker)
average.place(torch.device("cpu"))
early = average.watch_backward(weights, lambda: 4.0)
averages = ModelAverages([average])
averages.attach("any", [np.zeros(200, "f4"), np.zeros(300, "f4")])
for k in range(5 * (rank == 0)):
    with early.step():
        for weight in weights:
            weight.grad = None
        (weights[0] * (k + 1)).sum().backward(retain_graph=True)
        (weights[1] * 2).sum().backward()
        means = average.average(Batch([weight.grad for weight in weights], 4.0, [True, True]))
    assert [mean.unique().tolist() for mean in means] == [[k + 1.0], [2.0]], (k, means)
assert averages.join() == [5, 0]
