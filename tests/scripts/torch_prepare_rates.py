"""ReduceLROnPlateau gets the loss of each worker, which rises on rank 1 and falls on rank 0; prepared or not."""

import sys

import torch

from platoon_base.torch_loops import prepare, rank

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(32, 3), torch.randn(32, 1))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, optimizer, loader = prepare(model, optimizer, loader, mode="async")
if sys.argv[-1] == "prepared":
    scheduler = prepare(scheduler, mode="async")
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    scheduler.step(1.0 + epoch if rank() else 1.0 - 0.1 * epoch)
