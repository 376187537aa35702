"""An IterableDataset on one worker, a list on the other: each row counts once, and all workers make as many steps."""

import torch
from torch.utils.data import DataLoader, IterableDataset

from platoon_base import connect
from platoon_base.torch_loops import GradientAverage

ROWS = torch.arange(1.0, 14.0).reshape(-1, 1)


class Stream(IterableDataset):
    def __iter__(self):
        yield from ROWS[:9]


worker = connect()
model = torch.nn.Linear(1, 1)
average = GradientAverage(worker, model)
mine = DataLoader(Stream(), 2) if worker.global_rank == 0 else DataLoader(ROWS[9:], 2)
for _epoch in range(2):
    taken, sums = [], []
    for x in average.batches(mine):
        model.zero_grad()
        if x is not None:
            model(x).mean().backward()
        average(0 if x is None else len(x))
        taken.append(0 if x is None else len(x))
        sums.append(model.weight.grad.item())
    assert taken == [[2, 2, 2, 2, 1], [2, 2, 0, 0, 0]][worker.global_rank], taken
    torch.testing.assert_close(sums, [(1 + 2 + 10 + 11) / 4, (3 + 4 + 12 + 13) / 4, 5.5, 7.5, 9.0])
worker.close()
