import numpy as np

from keras_preamble import rank, worker

import torch
from platoon_plugins.keras import backends
from platoon_plugins.keras.several_averages import SeveralAverages

members = [backends.current().average(worker) for _ in range(2)]
several = SeveralAverages(members)
several.place(torch.device("cpu"))
like = [np.zeros(3, "f4")]
several.attach("all", like)
for member in members:
    member.like([torch.zeros(3)], lambda weight: like[0])
seen = []
for epoch in range(2):
    for batch in range([2, 4][rank] if epoch == 0 else 4):
        for member in members:
            (mean,) = member.averages([torch.full((3,), rank + 1.0)], 4.0)
            assert epoch == 0 or (mean == 1.5).all()
        several.count(1)
        seen.append(several.stops)
        if (epoch, rank, batch) == (0, 1, 2):
            several.vote()
    several.join()
assert not any(seen[-4:]), seen
