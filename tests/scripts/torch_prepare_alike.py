"""All workers train on the same rows, and later not at all."""

import torch
from torch import nn

from platoon_base.torch_loops import prepare

torch.manual_seed(0)
x = torch.randn(8, 3)
model = nn.Linear(3, 1)
model, optimizer = prepare(model, torch.optim.SGD(model.parameters(), 0.1), mode="sync")
for _ in range(3):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
