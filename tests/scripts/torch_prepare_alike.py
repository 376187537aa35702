"""All workers train on the same rows, with an optimizer that has no learning rate of its own."""

import torch
from torch import nn

from platoon_base.torch_loops import prepare


class Adaptive(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, 0.1)
        for group in self.param_groups:
            group["rate"] = group.pop("lr")

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["rate"] * parameter.grad


torch.manual_seed(0)
x = torch.randn(8, 3)
model = nn.Linear(3, 1)
model, optimizer = prepare(model, Adaptive(model.parameters()), mode="sync")
for _ in range(3):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
