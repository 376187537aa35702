"""One of the workers of memory_format.py: the parameters of ResNet-50, in memory of each kind in turn."""

import functools
import json
import sys
import time
from pathlib import Path

import torch

from platoon_base import connect
from platoon_base.torch_loops import GradientAverage

CALLS = 10
folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
worker = connect()
device = "cpu" if worker.device == "cpu" else "cuda"


def shapes():
    """Yield the shapes of the parameters of ResNet-50, of He et al. (2016): 25.6 million values."""
    yield from ((64, 3, 7, 7), (64,), (64,))
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, before, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                yield from (shape, shape[:1], shape[:1])
            if not block:
                yield from ((4 * width, before, 1, 1), (4 * width,), (4 * width,))
            before = 4 * width
    yield from ((1000, 2048), (1000,))


def parameters(channels_last):
    torch.manual_seed(0)
    made = [torch.nn.Parameter(0.01 * torch.randn(shape, device=device)) for shape in shapes()]
    for parameter in made:
        if channels_last and parameter.ndim == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
        parameter.grad = torch.ones_like(parameter)
    return made


def seconds_of(call):
    """Return the seconds of each call, after one that does not count."""
    call()
    taken = []
    for _ in range(CALLS):
        worker.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return taken


def overlapping(average, model):
    with average.overlapping():
        for parameter in model:
            parameter.grad = None
        torch.stack([(parameter * 1e-3).sum() for parameter in model]).sum().backward()


seconds = {}
for _ in range(rounds):
    for memory in ("contiguous", "channels_last", "on the first worker"):
        model = parameters(memory == "channels_last" or (memory == "on the first worker" and not worker.global_rank))
        worker.init_shared_params(model)
        seconds.setdefault(f"sync {memory}", []).extend(seconds_of(worker.sync_params))
        worker.release_shared_params()
        average = GradientAverage(worker, model)
        seconds.setdefault(f"average {memory}", []).extend(seconds_of(average))
        seconds.setdefault(f"overlapping {memory}", []).extend(
            seconds_of(functools.partial(overlapping, average, model))
        )
        average.close()
Path(folder, f"{worker.global_rank}.json").write_text(json.dumps(seconds))
worker.close()
