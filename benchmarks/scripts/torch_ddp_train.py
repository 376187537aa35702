"""One of the workers of torch_ddp.py: steps of one model by each way in turn, in the same processes."""

import datetime
import json
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from platoon_base import connect
from platoon_base.torch_loops import GradientAverage

folder, device = Path(sys.argv[1]), torch.device(sys.argv[2])
blocks, steps = map(int, sys.argv[3:5])
names = sys.argv[5:]
MODELS = {"20 KB": (64, 1), "10 MB": (1130, 2), "50 MB": (1800, 4)}  # units, hidden layers
BATCH = 64


def build(units, layers):
    """Return a perceptron, the same on all workers."""
    torch.manual_seed(0)
    hidden = [part for _ in range(layers) for part in (nn.Linear(units, units), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(units, 10)).to(device)


def step_of(way, worker, units, layers):
    """Return a function that makes a step of a model of its own by this way."""
    model = build(units, layers)
    trained = DistributedDataParallel(model) if way.startswith("DDP") else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    average = GradientAverage(worker, model) if way in ("average", "overlapping") else None
    x = torch.randn(BATCH, units, device=device)
    y = torch.randint(10, (BATCH,), device=device)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(trained(x), y)
        if way == "overlapping":
            with average.overlapping(BATCH):
                loss.backward()
        else:
            loss.backward()
            if way == "average":
                average(BATCH)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def seconds_of(step, worker):
    """Return the seconds of a step in one block, whose first step does not count."""
    step()
    worker.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps


with connect() as worker:
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=worker.global_rank,
        world_size=worker.global_size,
        timeout=datetime.timedelta(seconds=120),
    )
    times = {}
    for name in names:
        ways = {
            way: step_of(way, worker, *MODELS[name]) for way in ("alone", "DDP", "DDP again", "average", "overlapping")
        }
        for step in ways.values():
            for _ in range(3):
                step()
        times[name] = [{way: seconds_of(step, worker) for way, step in ways.items()} for _ in range(blocks)]
    (folder / f"{worker.global_rank}.json").write_text(json.dumps(times))
    distributed.destroy_process_group()
