"""A convolutional model in channels_last on the named workers, against steps by hand on the rows of all."""

from job_preamble import rank, sys, worker
import torch
from torch import nn
from platoon_base.torch_loops import GradientAverage

CHANNELS_LAST, OVERLAPS = sys.argv[2], sys.argv[3] == "overlapping"


def make():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 4, 2)
    return nn.Sequential(*layers).to(device)


device = "cpu" if worker.device == "cpu" else "cuda"
model, alone = make(), make()
if str(rank) in CHANNELS_LAST:
    model = model.to(memory_format=torch.channels_last)
optimizer, by_hand = (torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (model, alone))
average = GradientAverage(worker, model, bucket_bytes=64)
images = torch.randn(4, 2, 6, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(
    device
)  # steps, workers, rows, ...
for of_step in images:
    optimizer.zero_grad()
    if OVERLAPS:
        with average.overlapping(6):
            model(of_step[rank]).square().mean().backward()
    else:
        model(of_step[rank]).square().mean().backward()
        average(6)
    optimizer.step()
    by_hand.zero_grad()
    alone(of_step.flatten(0, 1)).square().mean().backward()
    by_hand.step()
for (name, mine), right in zip(model.named_parameters(), alone.parameters()):
    torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert name != "0.weight" or mine.is_contiguous() == (str(rank) not in CHANNELS_LAST)
average.close()
worker.close()
