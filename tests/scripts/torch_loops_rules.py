"""Parameters of a module that trains by itself, with each kind of rule, once with the optimizer's moments."""

from job_preamble import AveragedEASGD, DiLoCo, EASGD, rank, sys, worker
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from platoon_base.torch_loops import average_buffers, moments_of

RULES = {
    "default": None,
    "EASGD": EASGD(),
    "moments": EASGD(moments=True),
    "averaged": AveragedEASGD(),
    "DiLoCo": DiLoCo(),
}
kind = sys.argv[2]
device = "cpu" if worker.device == "cpu" else "cuda"
torch.manual_seed(0)
x = torch.randn(64, 6)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
sampler = DistributedSampler(TensorDataset(x, y), worker.global_size, rank, seed=worker.seed)
loader = DataLoader(TensorDataset(x, y), 8, sampler=sampler, num_workers=1)


def step(a, b):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(a.to(device)), b.to(device))
    loss.backward()
    optimizer.step()


if kind in ("moments", "averaged"):
    step(x[:8], y[:8])
    moments = moments_of(optimizer)
    assert len(moments) == 2 * len(list(model.parameters()))
    worker.init_shared_params(model.parameters(), RULES[kind], moments=moments)
else:
    worker.init_shared_params(model.named_parameters(), RULES[kind])
for epoch in range(2):
    sampler.set_epoch(epoch)
    for k, (a, b) in enumerate(loader, 1):
        step(a, b)
        if k % 2 == 0:
            worker.sync_params()
    scheduler.step()
worker.sync_params()
worker.barrier()
worker.copy_to_local()
mine = model[1].running_mean.clone()
theirs = worker.all_gather(mine)
assert not torch.equal(theirs[0], theirs[1])
average_buffers(worker, model, weight=[1, 3][rank])
torch.testing.assert_close(model[1].running_mean, (theirs[0] + 3 * theirs[1]) / 4)
assert model[1].num_batches_tracked.dtype == torch.int64
state = [*model.parameters(), *model.buffers(), *(moments if kind in ("moments", "averaged") else [])]
everyone = worker.all_gather(torch.cat([each.detach().flatten().double() for each in state]))
assert torch.equal(everyone[0], everyone[1])
model.eval()
assert model(x.to(device)).isfinite().all()
worker.close()
