import numpy as np

from keras_preamble import rank, worker

import torch
from platoon_plugins.keras import backends

weights = [torch.nn.Parameter(torch.ones(200)), torch.nn.Parameter(torch.ones(300))]
average = backends.current().average(worker)
average.place(torch.device("cpu"))
average.watch_backward(weights)
average.attach("any", [np.zeros(200, "f4"), np.zeros(300, "f4")])
for k in range(5 * (rank == 0)):
    with average.watched_step():
        for weight in weights:
            weight.grad = None
        average.weight = 4.0
        (weights[0] * (k + 1)).sum().backward(retain_graph=True)
        (weights[1] * 2).sum().backward()
        means = average.averages([weight.grad for weight in weights], average.take_weight())
    assert [mean.unique().tolist() for mean in means] == [[k + 1.0], [2.0]], (k, means)
assert average.join() == [5, 0]
