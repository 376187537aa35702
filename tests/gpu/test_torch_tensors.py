"""Collectives on torch's tensors, on CUDA devices by NCCL where there are two, and averaged gradients on them."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .nox/keras3")

DEVICES = [f"cuda{i}" for i in range(torch.cuda.device_count())][:2]
pytestmark = [
    pytest.mark.base,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DEVICES, reason="needs a CUDA device (see tests/README.md)"),
]
by_nccl = pytest.mark.skipif(len(DEVICES) < 2, reason="needs two CUDA devices (see tests/README.md)")

HEADER = """
import os, signal, sys, time
import numpy as np
import torch
from platoon_base import connect
from platoon_base.errors import ConfigurationError, WorkerLostError

worker = connect()
rank, size = worker.global_rank, worker.global_size
on_device = lambda array: torch.from_numpy(np.asarray(array)).cuda()
"""


@pytest.fixture
def run_tensors(run_job):
    """Run a script on two workers, on a device each if there are two, else both on one."""
    return lambda text, **options: run_job(HEADER + text, 2, devices=(DEVICES * 2)[:2], **options)


def test_every_operation_and_dtype(run_tensors):
    outcome = run_tensors(
        """
def parts(dtype, shape):
    rng = np.random.default_rng(3)
    return [np.asarray(rng.integers(1, 5, shape)).astype(dtype) for _ in range(size)]

OPS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
for dtype in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8"):
    for shape in ((), (1,), (17,), (3, 1000), (0, 3)):
        mine = parts(dtype, shape)
        for op, f in OPS.items():
            want = f(np.stack(mine).astype(dtype), axis=0).astype(dtype)
            got = worker.all_reduce(on_device(mine[rank]), op)
            assert got.is_cuda and np.array_equal(got.cpu().numpy(), want), (dtype, shape, op, got, want)
        total = np.sum(np.stack(mine), axis=0, dtype=dtype)
        want = (total / size).astype(dtype) if dtype.startswith("f") else total // size
        x = on_device(mine[rank])
        assert worker.all_reduce(x, "mean", x) is x
        assert np.array_equal(x.cpu().numpy(), want), (dtype, shape, x, want)
        assert np.array_equal(worker.all_gather(on_device(mine[rank])).cpu().numpy(), np.stack(mine))
    whole = [(np.stack(parts(dtype, (5,))) + r).astype(dtype) for r in range(size)]
    got = worker.advanced.reduce_scatter(on_device(whole[rank]), "sum")
    assert np.array_equal(got.cpu().numpy(), np.sum(np.stack(whole), axis=0, dtype=dtype)[rank])
    x = on_device(np.full((4, 3), rank + 1, dtype))
    worker.broadcast([x], root=1)
    assert (x.cpu().numpy() == 2).all()
x = on_device(np.arange(10, dtype="float32"))[::2]
assert np.array_equal(worker.all_reduce(x).cpu().numpy(), size * np.arange(10)[::2])
"""
    ).require_success()
    by_host = ["use host memory" in log for log in outcome.logs]
    assert by_host == [len(DEVICES) < 2] * 2


@by_nccl
@pytest.mark.parametrize("end", ["sys.exit(0)", "raise RuntimeError('oops')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_rank_that_goes_ends_the_all_reduce_of_the_others(run_tensors, end):
    outcome = run_tensors(
        f"""
x = on_device(np.ones(1 << 20, "f4"))
for _ in range(3):
    worker.all_reduce(x, "mean", x)
torch.cuda.synchronize()
if rank == 1:
    {end}
begun = time.monotonic()
try:
    worker.all_reduce(x, "sum", x)
    torch.cuda.synchronize()
    worker.all_reduce(x, "sum", x)
except WorkerLostError as exc:
    assert "rank 1" in str(exc), exc
    worker.report({{"took": time.monotonic() - begun}})
"""
    )
    assert outcome.reported.get("took", 99) < 10, outcome.logs[0]


@by_nccl
def test_other_shapes_on_another_rank_are_told(run_tensors):
    run_tensors(
        """
x = on_device(np.ones(1000 + rank, "f4"))
try:
    worker.all_reduce(x, "sum", x)
    torch.cuda.synchronize()
    time.sleep(10)
except ConfigurationError as exc:
    assert "differs from that of rank" in str(exc), exc
else:
    raise AssertionError("not told")
"""
    ).require_success()
