import numpy as np

from keras_preamble import rank, worker

import torch
from platoon_plugins.keras import backends
from platoon_plugins.keras.gradients import Batch
from platoon_plugins.keras.model_averages import ModelAverages

members = [backends.current().average(worker) for _ in range(2)]
several = ModelAverages(members)
several.place(torch.device("cpu"))
like = [np.zeros(3, "f4")]
several.attach("all", like)
for member in members:
    member.expect([torch.zeros(3)], like)
seen = []
for epoch in range(2):
    for batch in range([2, 4][rank] if epoch == 0 else 4):
        for member in members:
            (mean,) = member.average(Batch([torch.full((3,), rank + 1.0)], 4.0, [True]))
            assert epoch == 0 or (mean == 1.5).all()
        several.count(1)
        seen.append(several.stops)
        if (epoch, rank, batch) == (0, 1, 2):
            several.vote()
    several.join()
assert not any(seen[-4:]), seen
