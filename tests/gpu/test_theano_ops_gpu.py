"""The Ops on GpuArrays: lifted as Theano's own are, and with the host's values; on OpenCL, so no GPU is needed."""

import subprocess
import sys

import pytest

from platoon_base import compat

compat.apply()
theano = pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")
pytest.importorskip("pygpu", reason="needs pygpu: see docs/compat.md")

pytestmark = [pytest.mark.theano, pytest.mark.slow]

DEVICES = ["opencl0:0"] * 2

# Theano's device is fixed when it is imported, so each test is a job of processes of its own.
HEADER = """
import os
import sys
os.environ["THEANO_FLAGS"] += ",force_device=True,floatX=float32"
import own_pocl_cache
import numpy as np
import theano
import theano.tensor as T
from theano.gpuarray.basic_ops import GpuFromHost, HostFromGpu
from platoon_base import EASGD, connect
from platoon_base.schedule import EveryN
from platoon_base.theano_ops import AllReduceSum, Sync, Synchronizer, all_reduce
from platoon_base.theano_ops.base import JobOp
from platoon_base.theano_ops.gpu import GpuAllReduce, GpuSync

worker = connect()
rank = worker.global_rank
seen = []
of_worker = worker.all_reduce

def spy(array, op="sum", dest=None):
    seen.append((op, type(array).__name__, array.size))
    return of_worker(array, op, dest)

worker.all_reduce = spy

def nodes(function, *ops):
    return [n for n in function.maker.fgraph.toposort() if isinstance(n.op, ops or JobOp)]

def transfers(function):
    return len(nodes(function, GpuFromHost)), len(nodes(function, HostFromGpu))
"""


@pytest.fixture
def run_on_device(opencl, run_job):
    """Run a script on two workers, both on the OpenCL device."""

    def run(text, **kwargs):
        return run_job(HEADER + text, devices=DEVICES, **kwargs).require_success()

    return run


@pytest.mark.slow
def test_values_of_all_ops_and_dtypes(run_on_device):
    run_on_device(
        """
NUMPY = {
    "sum": np.add.reduce, "prod": np.multiply.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce,
    "mean": lambda both: (both.astype("float64").sum(axis=0) / 2).astype(both.dtype),
}
DTYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8"]
SHAPES = [(3,), (2, 3), (0, 2), (1, 2, 2)]

def values(rank):
    rng = np.random.RandomState(rank)
    return [np.asarray(rng.randint(0 if d == "uint8" else -9, 11, s), d) for d in DTYPES for s in SHAPES]

shared = [theano.shared(value) for value in values(rank)]
for op, reduce in NUMPY.items():
    function = theano.function([], all_reduce(*shared, op=op))
    node, = nodes(function)
    assert type(node.op) is GpuAllReduce and node.op.reduction == op, node
    assert transfers(function) == (0, len(shared))
    for _ in range(2):
        seen.clear()
        for a, b, x in zip(values(0), values(1), function()):
            expected = reduce(np.stack([a, b]))
            assert x.dtype == a.dtype and x.shape == a.shape, (op, x, expected)
            np.testing.assert_allclose(x, expected, rtol=1e-6, err_msg=f"{op} {a.dtype}")
        assert seen == [(op, "GpuArray", 13)] * len(DTYPES), seen
for variable, value in zip(shared, values(rank)):
    np.testing.assert_array_equal(variable.get_value(), value)
"""
    )


@pytest.mark.slow
def test_what_lies_on_the_device_stays_there(run_on_device):
    run_on_device(
        """
def start():
    return [theano.shared(np.arange(6, dtype="float32").reshape(2, 3), "W"), theano.shared(np.ones(3, "float32"), "b")]

# Gradients of parameters: nothing is transferred but the batch, and the gradients' memory becomes the result.
w, b = start()
x = T.fmatrix("x")
loss = T.sqr(w * x + b).sum()
grads = all_reduce(*theano.grad(loss, [w, b]), op="mean")
function = theano.function([x], [], updates=[(w, w - 0.5 * grads[0]), (b, b - 0.5 * grads[1])])
node, = nodes(function)
assert node.op.inplace == (0, 1) and node.op.destroy_map == {0: [0], 1: [1]}
assert transfers(function) == (1, 0)
function(np.full((2, 3), rank, "float32"))
w0, b0 = np.arange(6.0).reshape(2, 3), np.ones(3)
dw = sum(2 * (w0 * r + b0) * r for r in range(2)) / 2
db = sum((2 * (w0 * r + b0)).sum(axis=0) for r in range(2)) / 2
np.testing.assert_allclose(w.get_value(), w0 - 0.5 * dw)
np.testing.assert_allclose(b.get_value(), b0 - 0.5 * db)
assert seen == [("mean", "GpuArray", 9)], seen

# Host values whose results go to the device only; a scalar of the host comes along.
w, b = start()
s = T.fscalar("s")
total, scalar = all_reduce(x + 1, s * 2)
function = theano.function([x, s], [], updates=[(w, w + total * scalar)])
assert [type(n.op) for n in nodes(function)] == [GpuAllReduce]
assert transfers(function)[1] == 0
function(np.full((2, 3), rank, "float32"), 1)
np.testing.assert_allclose(w.get_value(), w0 + 3 * 4)

# The scalar alone: nothing it is made of is on the device, only where it goes; whichever way Theano moves graphs.
usual = theano.compile.get_default_mode()
for mode in (usual, usual.excluding("gpuarray_graph_optimization"), "FAST_COMPILE"):
    total, = all_reduce(s * 2)
    function = theano.function([s], [], updates=[(w, w + total)], mode=mode)
    assert [type(n.op) for n in nodes(function)] == [GpuAllReduce], mode
    assert transfers(function) == (1, 0)

# Scalars of the host stay there, as Theano has it; both kinds keep one order.
i = T.lscalar("i")
function = theano.function([i], [*all_reduce(b * 2, op="max"), *all_reduce(i * 2), *all_reduce(w, op="min")])
found = nodes(function)
assert [type(n.op) for n in found] == [GpuAllReduce, AllReduceSum, GpuAllReduce], found
assert all(n.op.ordered for n in found)
seen.clear()
assert function(rank)[1] == 2
assert [(op, kind) for op, kind, _ in seen] == [("max", "GpuArray"), ("sum", "ndarray"), ("min", "GpuArray")], seen

# Calls that can be one become one, on the device too.
w, b = start()
function = theano.function([], [], updates=[(w, all_reduce(w * 2)[0]), (b, all_reduce(b * 3)[0])])
node, = nodes(function)
assert node.op.inplace == (0, 1)
function()
np.testing.assert_allclose(b.get_value(), np.full(3, 6))

# A value that is needed elsewhere stays.
w, b = start()
y, z = w * 2, b * 2
function = theano.function([], all_reduce(y, z) + [y[0] + 1])
node, = nodes(function)
assert node.op.inplace == (1,), node
np.testing.assert_allclose(function()[2], w0[0] * 2 + 1)

# A shape is known without a call.
seen.clear()
function = theano.function([], [v.shape for v in all_reduce(w * 2, b * 2)])
assert [shape.tolist() for shape in function()] == [[2, 3], [3]]
assert nodes(function) == [] and seen == []

# Memory that is not contiguous.
function = theano.function([], all_reduce(w.T, w[:, 1], b))
np.testing.assert_allclose(function()[0], 2 * w0.T)
np.testing.assert_allclose(function()[1], 2 * w0[:, 1])
"""
    )


SYNC = """
period = EveryN(2)
start = np.arange(6, dtype="float32").reshape(2, 3)
params = [theano.shared(start, "W"), theano.shared(start[0], "b")]
worker.init_shared_params(params, EASGD(0.25))
synchronizer = Synchronizer(worker, period)
x = T.fmatrix("x")
values = Sync(synchronizer)(params[0] + x * (rank + 1), params[1] - x[0], return_list=True)
function = theano.function([x], [], updates=list(zip(params, values)))
node, = nodes(function)
on_device = len(sys.argv) > 2 and sys.argv[2] == "device"
assert type(node.op) is (GpuSync if on_device else Sync), node
assert node.op.inplace == (0, 1), node
assert transfers(function)[1] == 0
given = []
original = synchronizer.step
def step(arrays):
    given.append(arrays)
    original(arrays)
synchronizer.step = step
function.fn.allow_gc = False
for i in range(4):
    for turn in range(2):
        if turn == rank:
            function(np.full((2, 3), i, "float32"))
            inside = [p.get_value(borrow=True, return_internal_type=True) for p in params]
            assert all(a is b for a, b in zip(given[-1], inside))
        worker.barrier()
name = "GpuArray" if on_device else "ndarray"
assert {type(a).__name__ for arrays in given for a in arrays} == {name}
worker.report({f"{rank} {p} {j}": v for p in params for j, v in enumerate(p.get_value().ravel().tolist())})
with worker.center_params():
    worker.report({f"center {p} {j}": v for p in params for j, v in enumerate(p.get_value().ravel().tolist())})
"""


@pytest.mark.slow
def test_synchronizing_device_arrays_is_synchronizing_host_arrays(opencl, run_job):
    found = [
        run_job(header + SYNC, args=[place], devices=devices).require_success().reported
        for place, header, devices in (
            ("device", HEADER, DEVICES),
            ("host", HEADER.replace(",force_device=True", ""), None),
        )
    ]
    assert len(found[0]) == 27
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_packing_on_the_device(run_on_device):
    run_on_device(
        """
from pygpu import gpuarray
from platoon_base.collectives.flat import FlatBuffers, pack, unpack
from theano.gpuarray.type import get_context

context = get_context(None)
host = [np.asarray(np.arange(n).reshape(s) + n, "float32") for n, s in ((6, (2, 3)), (1, ()), (0, (0, 4)), (5, (5,)))]
device = [gpuarray.array(a, context=context) for a in host]
buffer = pack(device)
np.testing.assert_array_equal(np.asarray(buffer), np.concatenate([a.ravel() for a in host]))
back = [gpuarray.empty(a.shape, a.dtype, context=context) for a in host]
unpack(buffer, back)
for a, b in zip(host, back):
    np.testing.assert_array_equal(np.asarray(b), a)
kept, buffers = [], FlatBuffers()
for _ in range(2):
    buffers.combine(lambda array, op, dest: kept.append(array.base_data), "sum", device, back)
assert kept[0] == kept[1]
"""
    )


def test_packing_by_one_kernel_on_cuda():
    """A call that doubles the buffer stands in for two ranks that hold the same."""
    code = """
import numpy as np, pygpu
from platoon_base.collectives.flat import FlatBuffers
from platoon_base.collectives.flat_device import averages
context = pygpu.init("cuda0", single_stream=True)
rng = np.random.RandomState(0)
for dtype in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8"):
    shapes = [(), (0, 3), (7,), (300, 40), *((n, 3) for n in range(100)), (100000,)]
    host = [np.asarray(rng.randint(0, 50, s), dtype) for s in shapes]
    arrays = [pygpu.array(a, context=context) for a in host]
    arrays[3] = pygpu.array(np.ascontiguousarray(host[3].T), context=context).T
    outs = [pygpu.zeros(a.shape, dtype, context=context) for a in host]
    buffers, seen = FlatBuffers(one_stream=True), []
    def call(array, op, dest):
        seen.append((op, array.size))
        dest[...] = pygpu.array(np.asarray(array) * np.asarray(2, dtype), context=context)
    size = sum(a.size for a in host)
    for op in ("sum", "mean", "sum"):
        buffers.combine(call, op, arrays, outs)
        counted = op == "mean" and averages(dtype)
        assert seen.pop() == ("sum" if counted else op, size + counted)
        for a, out in zip(host, outs):
            np.testing.assert_array_equal(np.asarray(out), a if counted else a * np.asarray(2, dtype))
"""
    probe = [sys.executable, "-c", "import pygpu; pygpu.init('cuda0')"]
    if subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("needs a CUDA device")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert found.returncode == 0, found.stderr
