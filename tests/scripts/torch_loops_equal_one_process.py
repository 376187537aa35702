"""Batches of other sizes and another number of them on each worker, against steps by hand on the rows of all."""

from job_preamble import rank, sys, worker
import torch
from torch import nn
from platoon_base.torch_loops import EarlyAverages, GradientAverage

OVERLAPS = sys.argv[2] == "overlapping"
SIZES = [[5, 3, 4, 2], [2, 7, 1]]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.extra = nn.Linear(4, 8), nn.Linear(4, 8)
        self.frozen, self.unused = nn.Linear(8, 8).requires_grad_(False), nn.Linear(2, 2)
        self.last = nn.Linear(8, 1).double()
        self.register_buffer("mask", torch.rand(9) > 0.5)
        self.register_buffer("scale", torch.rand(9).bfloat16())

    def forward(self, x, extra):
        hidden = self.first(x) + (self.extra(x) if extra else 0)
        return self.last(self.frozen(hidden.relu()).double())


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    made = [(torch.randn(n, 4, generator=generator), torch.randn(n, 1, generator=generator)) for n in SIZES[rank]]
    return [(x.to(device), y.double().to(device)) for x, y in made]


def loss_of(model, x, y, rank, k):
    return ((model(x, extra=rank == 1 and k % 2 == 0) - y) ** 2).mean()  # a branch that only one worker takes


begun, take = [], EarlyAverages.take


def note(early, gradients):
    begun.append(take(early, gradients))
    return begun[-1]


EarlyAverages.take = note
device = "cpu" if worker.device == "cpu" else "cuda"
torch.manual_seed(rank)  # other first values on each worker; the first one's hold
model = Net().to(device)
with torch.random.fork_rng():
    torch.manual_seed(0)
    alone = Net().to(device)
optimizer, by_hand = (torch.optim.Adam(each.parameters(), 0.05) for each in (model, alone))
average = GradientAverage(worker, model, bucket_bytes=64)
for mine, right in zip(model.parameters(), alone.parameters()):
    assert torch.equal(mine, right)
assert torch.equal(model.mask, alone.mask)
assert torch.equal(model.scale, alone.scale)

for epoch in range(2):
    for k, batch in enumerate([*batches(rank), *[None] * (max(map(len, SIZES)) - len(SIZES[rank]))]):
        assert (batch is None) == (rank == 1 and k == 3)
        optimizer.zero_grad()
        rows = 0 if batch is None else len(batch[0])
        if OVERLAPS:
            with average.overlapping(rows):
                if batch is not None:
                    loss_of(model, *batch, rank, k).backward()
        else:
            if batch is not None:
                loss_of(model, *batch, rank, k).backward()
            average(rows)
        assert model.unused.weight.grad is model.frozen.weight.grad is None
        optimizer.step()

        by_hand.zero_grad()
        there = [(r, batches(r)[k]) for r in range(2) if k < len(SIZES[r])]
        total = sum(len(x) for _, (x, _) in there)
        sum(len(x) / total * loss_of(alone, x, y, r, k) for r, (x, y) in there).backward()
        by_hand.step()
for (name, mine), right in zip(model.named_parameters(), alone.parameters()):
    torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
everyone = worker.all_gather(torch.cat([each.detach().flatten().double() for each in model.parameters()]))
assert torch.equal(everyone[0], everyone[1])
assert any(begun) == OVERLAPS, begun  # averages that have begun in the backward pass
average.close()
worker.close()
