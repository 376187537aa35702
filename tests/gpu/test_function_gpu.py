"""One training call, resident data and the original's worker on devices: CUDA, or else OpenCL on the CPU."""

import pytest

from platoon_base import compat

compat.apply()
pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")
pytest.importorskip("pygpu", reason="needs pygpu: see docs/compat.md")

from devices_here import DEVICES

if len(DEVICES) < 2:
    pytest.skip("no devices: run `make setup` on Debian 12, which installs pygpu and OpenCL", allow_module_level=True)

pytestmark = [pytest.mark.theano, pytest.mark.slow]

# Theano's device is fixed when it is imported, so each test is a job of processes of its own.
HEADER = """
import os
os.environ["THEANO_FLAGS"] += ",force_device=True,floatX=float32"
import own_pocl_cache
import numpy as np
import theano
import theano.tensor as T
from theano.gpuarray.type import GpuArraySharedVariable
from platoon_base import connect
from platoon_base.data import SharedData
from platoon_base.theano_ops import function, scatter
from platoon_base.theano_ops.base import JobOp

worker = connect()
rank, size = worker.global_rank, worker.global_size
assert theano.config.device == os.environ["PLATOON_DEVICE"] != "cpu"
rng = np.random.RandomState(0)
X, Y = rng.randn(23, 3).astype("f4"), rng.randn(23).astype("f4")
close = dict(rtol=1e-4, atol=1e-5)
"""


def test_one_training_call_is_that_of_one_process_on_all_rows(run_job):
    """Inputs from the host and from shared memory, uneven batches, and rows that lie on the devices and stay there."""
    run_job(
        HEADER
        + """
def sgd(grads, params):
    return [(param, param - 0.1 * grad) for param, grad in zip(params, grads)]

def error(x, y):
    return T.sqr((x * w).sum(1) - y).mean()

w = theano.shared(np.full(3, rank, "f4"), "w")
x, y = T.fmatrix(), T.fvector()
xs, ys = scatter(SharedData(X, "x"), "xs"), scatter(Y, "ys")
assert all(isinstance(shared, GpuArraySharedVariable) for shared in (w, xs, ys))
np.testing.assert_array_equal(xs.get_value(), X[rank::size])
train = function([x, y], error(x, y), sgd, params=[w])
resident = function([], error(xs, ys), sgd, params=[w], sliceable_shareds=[xs, ys])
wanted, shared = np.zeros(3), [SharedData(X, "x2"), SharedData(Y, "y2")]

def follow(loss, rows):
    global wanted
    a, b = X[rows], Y[rows]
    np.testing.assert_allclose(loss, np.square(a.dot(wanted) - b).mean(), **close)
    wanted = wanted - 0.1 * 2 * a.T.dot(a.dot(wanted) - b) / len(a)
    np.testing.assert_allclose(w.get_value(), wanted, **close)
    every = worker.all_gather(w.get_value())
    assert (every == every[0]).all(), every

for step, count in enumerate((8, 7, 2, 1)):
    rows = rng.permutation(23)[:count]
    follow(train(*(shared if step % 2 else [X, Y]), batch=list(rows)), rows)
mine = [[4, 0, 2], [5, 1]]  # each worker's own rows, among those that it has
for batch_s in (slice(1, 6), None, [0, 3], mine):
    chosen = batch_s if batch_s is mine else [slice(None) if batch_s is None else batch_s] * size
    follow(resident(batch_s=batch_s), np.concatenate([np.arange(23)[r::size][chosen[r]] for r in range(size)]))
for compiled in (*train.compiled, *resident.compiled):
    ops = [n.op for n in compiled.maker.fgraph.toposort()]
    assert [type(op).__name__ for op in ops if isinstance(op, JobOp)] == ["GpuAllReduce"]
for compiled in resident.compiled:
    names = [type(n.op).__name__ for n in compiled.maker.fgraph.toposort()]
    assert any(name.startswith(("GpuSubtensor", "GpuAdvancedSubtensor1")) for name in names), names
    assert "Subtensor" not in names and "AdvancedSubtensor1" not in names, names
""",
        devices=DEVICES[:2],
    ).require_success()


def test_reductions_and_slices_of_resident_data(run_job):
    """Rows are weighted alike however many slices there are; a worker that selects none adds nothing."""
    run_job(
        HEADER
        + """
xs = scatter(X, "xs")
outputs = [xs.mean(0), xs.sum(), xs.max(0), xs.min(0), xs]
f = function([], outputs, reduce=["mean", "sum", "max", "min", "gather"], sliceable_shareds=[xs])
own = [X[r::size] for r in range(size)]
for batch_s, rows in ((None, np.concatenate(own)), ([[], [1, 2]], own[1][[1, 2]]), (slice(2, 9), None)):
    rows = np.concatenate([part[batch_s] for part in own]) if rows is None else rows
    for num_slices in (1, 3):
        found = f(batch_s=batch_s, num_slices=num_slices)
        for value, expected in zip(found, [rows.mean(0), rows.sum(), rows.max(0), rows.min(0), rows]):
            np.testing.assert_allclose(value, expected, **close)
""",
        devices=DEVICES[:2],
    ).require_success()


def test_the_original_s_worker_on_devices(run_job):
    """Its `shared`, `all_reduce` and center take arrays that lie on a device; values by hand."""
    run_job(
        HEADER
        + """
from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import EASGD

old = Worker(control_port=5567)
param = theano.shared(np.full((2, 3), 8 * rank, "f4"), "p")
array = param.get_value(borrow=True, return_internal_type=True)
common = old.shared(array)
assert isinstance(common, np.ndarray) and common.shape == (2, 3) and common.dtype == "f4" and not common.any()
worker.barrier("made")
common[rank] = rank + 1
worker.barrier("written")
assert (common == [[1] * 3, [2] * 3]).all()
for op, expected in {"+": 8, "max": 8, "min": 0, "*": 0}.items():
    found = old.all_reduce(array, op)
    assert type(found) is type(array) and (np.asarray(found) == expected).all(), op
old.init_shared_params([param], EASGD(0.25))
start = param.get_value()
assert (start == start[0, 0]).all() and start[0, 0] in (0, 8)  # those of the worker that came first
worker.barrier("shared")
if rank == 1:
    param.set_value(start + 4)
    old.sync_params()  # 0.25 * 4 go to the center
    assert (param.get_value() == start + 3).all()
worker.barrier("synchronized")
old.copy_to_local()
assert (param.get_value() == start + 1).all()
worker.barrier("end")
""",
        devices=DEVICES[:2],
    ).require_success()
