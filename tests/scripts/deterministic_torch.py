"""Usage: RULE STEPS: a loop of torch without a seed, with convolutions and dropout, on this worker's device."""

from job_preamble import hashlib, parse_rule, sys, worker
import torch
from torch import nn
from platoon_base.torch_loops import GradientAverage

rule, steps = sys.argv[1], int(sys.argv[2])
device = "cpu" if worker.device == "cpu" else "cuda"
first, last = nn.Conv2d(1, 8, 3), nn.Linear(8 * 36, 10)
model = nn.Sequential(first, nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), last).to(device)
x, y = torch.randn(256, 1, 8, 8), torch.randint(10, (256,))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
average = GradientAverage(worker, model) if rule == "gradients" else None
if average is None:
    worker.init_shared_params(model.named_parameters(), parse_rule(rule, "the test"))
torch.manual_seed(worker.shard_seed)  # other masks and rows on each worker
for step in range(1, steps + 1):
    rows = torch.randint(len(x), (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[rows].to(device)), y[rows].to(device)).backward()
    if average is not None:
        average(len(rows))
    optimizer.step()
    worker.progress(steps=1, epoch=1)
    if average is None and step % 2 == 0:
        worker.sync_params()
worker.barrier()
if average is None:
    worker.copy_to_local()
else:
    average.close()
weights = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
print(f"bits of rank {worker.global_rank}: {hashlib.sha256(weights).hexdigest()}", flush=True)
