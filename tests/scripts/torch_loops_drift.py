"""Workers whose parameters have come to differ are refused, whatever made them differ; equal ones never are."""

from job_preamble import ConfigurationError, rank, sys, worker
import math
import torch
from torch import nn
from platoon_base.torch_loops import GradientAverage


def train(steps, begun=lambda model: None, rate=0.1, skip=(), channels_last=False, start=0.5):
    """Make steps of a small network; return the error that ended them, or None."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    if channels_last:
        model.to(memory_format=torch.channels_last)
    nn.init.constant_(model[3].weight, start)
    average = GradientAverage(worker, model)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    begun(model)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 2, 3, 3) + rank).square().mean().backward()
        try:
            average(4)
        except ConfigurationError as exc:
            return f"step {step}: {exc}"
        if step not in skip:
            optimizer.step()
    return None


def change_last_value(model):
    with torch.no_grad():
        model[3].weight.view(-1)[-1] += 0.1 * rank


case = sys.argv[2]
if case == "equal":
    assert train(30) is None
    assert train(30, channels_last=True) is None
    assert train(30, start=math.nan) is None  # is no difference
    assert train(30, start=math.inf) is None
elif case == "loaded by one":
    found = train(1, lambda model: rank or model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}))
    assert found is not None and found.startswith("step 0: got 0.weight"), found
    assert "worker.reduce_metrics" in found, found
elif case == "rate":
    found = train(3, rate=0.1 * (1 + 0.1 * rank))
    assert found is not None and found.startswith("step 1: got 1.weight"), found  # after Adam's steps of +-0.1, +-0.11
elif case == "skipped":
    assert train(3, skip=[0] if rank else []) is not None
elif case == "one value":  # all are looked at in turn
    assert "got 3.weight" in str(train(30, change_last_value))
else:
    found = train(2, lambda model: model[0].weight.data.fill_(math.nan) if rank else None)
    assert found is not None
worker.close()
