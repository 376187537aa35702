"""A loop trains another model than the one that was prepared, and another loader."""

from job_preamble import connect, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from platoon_base.torch_loops import prepare
from platoon_base.worker_process import apart

apart.AFTER_S = 1.0
x = torch.randn(8, 3)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
prepare(model, optimizer, DataLoader(TensorDataset(x)), mode=sys.argv[2])


def train(model, optimizer, steps):
    def closure():
        time.sleep(0.01)  # seconds in all, in which it is seen
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


other = nn.Linear(3, 1)
train(other, torch.optim.SGD(other.parameters(), 0.1), 300)
connect().barrier()
train(model, optimizer, 3)
