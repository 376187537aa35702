"""LocalSGD and DiLoCo, with AdamW in the workers, against their algorithms in plain torch in one process."""

from job_preamble import DiLoCo, LocalSGD, sys, worker
import torch
from torch import nn

ROUNDS, STEPS = 6, 5
rule, outer_lr, momentum = {"LocalSGD": (LocalSGD(), 1.0, 0.0), "DiLoCo": (DiLoCo(0.6, 0.7), 0.6, 0.7)}[sys.argv[2]]


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def train(model, optimizer, rank, number):
    generator = torch.Generator().manual_seed(1000 * rank + number)
    for _ in range(STEPS):
        x = torch.randn(16, 6, generator=generator)
        optimizer.zero_grad()
        (model(x) - (rank + 1) * x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


model, optimizer = made()
worker.init_shared_params(model.parameters(), rule)
for number in range(ROUNDS):
    train(model, optimizer, worker.global_rank, number)
    worker.sync_params()

theirs = [made() for _ in range(worker.global_size)]
center = list(made()[0].parameters())
outer = torch.optim.SGD(center, outer_lr, momentum=momentum, nesterov=momentum > 0)
for number in range(ROUNDS):
    for rank, (other, inner) in enumerate(theirs):
        train(other, inner, rank, number)
    with torch.no_grad():
        for c, *values in zip(center, *(other.parameters() for other, _ in theirs)):
            c.grad = c - torch.stack(values).mean(0)
        outer.step()
        for other, _ in theirs:
            for p, c in zip(other.parameters(), center):
                p.copy_(c)
for p, c in zip(model.parameters(), center):
    assert (p - c).abs().max() < 1e-5 * c.abs().max(), (p - c).abs().max()
assert (center[0] - made()[0][0].weight).abs().max() > 0.05
