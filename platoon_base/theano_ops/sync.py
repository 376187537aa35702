"""The Ops with which a worker synchronizes, and reports its steps and loss, inside a compiled function."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import theano
from theano.gof import Apply, Op, Optimizer, toolbox

from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import connect
from platoon_base.theano_ops.base import JobBound, JobOp, next_turn
from platoon_base.worker.fit import Fit
from platoon_base.worker.handle import Worker


class Synchronizer(JobBound):
    """Counts the updates of one compiled training loop as steps of its fit, which synchronizes."""

    def __init__(self, fit: Fit) -> None:
        self.worker = fit.worker
        self.turn = next_turn()
        self._fit, self._timeout_s = fit, fit.timeout_s
        self._sharing = self.worker.advanced.sharing

    def step(self, arrays: list[Any]) -> None:
        """Count one update, and synchronize ``arrays`` in place if that is due."""
        if self.worker.advanced.sharing != self._sharing:
            raise ConfigurationError(
                "this function synchronizes parameters that were released: compile one without "
                "synchronization, or wrap the updates again and compile"
            )
        self.worker.progress(steps=1)
        self._fit.timeout_s = self._timeout_s
        self._fit.step(arrays=arrays)


class Sync(JobOp):
    """Synchronize updated parameter values with the center on every N-th call."""

    __props__: tuple[str, ...] = ("synchronizer", "inplace", "ordered")

    def __init__(self, synchronizer: Synchronizer, inplace: tuple[int, ...] = (), ordered: bool = False) -> None:
        self.synchronizer = synchronizer
        self.turn = synchronizer.turn
        self.ordered = ordered
        self._set_inplace(inplace)

    def job_key(self) -> Any:
        """Return the worker: its synchronizations and its reductions keep one order."""
        return self.synchronizer.worker

    def work(self, values: list[Any], own: list[bool]) -> list[Any]:
        arrays = [x if mine else x.copy(order="C") for x, mine in zip(values, own)]
        self.synchronizer.step(arrays)
        return arrays

    def __str__(self) -> str:
        return f"{type(self).__name__}{{inplace={self.inplace}}}"


class StepReport(JobBound, Op):  # type: ignore[misc]
    """Identity op: reports the step, and the loss if that is the second input."""

    __props__ = ("worker", "counts")
    view_map = {0: [0]}  # noqa: RUF012 - Theano's name for it

    def __init__(self, worker: Worker, counts: bool) -> None:
        self.worker = worker
        self.counts = counts
        self._count_step = worker.advanced.count_step

    def __reduce__(self) -> Any:
        """Return a constructor that binds the Op to the job of the process that loads it."""
        return _load, (self.counts,)

    def make_node(self, value: Any, *loss: Any) -> Apply:
        return Apply(self, [value, *loss], [value.type()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        value, *loss = inputs
        told = float(loss[0]) if loss else None
        if not self.worker.closed:
            if self.counts:
                self._count_step(told)
            elif told is not None:
                self.worker.progress(loss=told)
        output_storage[0][0] = value

    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return shapes[:1]

    def __str__(self) -> str:
        return f"StepReport{{counts={self.counts}}}"


def _load(counts: bool) -> StepReport:
    return StepReport(connect(), counts)


class InsertStepReports(Optimizer):  # type: ignore[misc]
    """Make each function that updates parameters in collective calls report its steps and loss."""

    def add_requirements(self, fgraph: Any) -> None:
        fgraph.attach_feature(toolbox.ReplaceValidate())

    def apply(self, fgraph: Any) -> None:
        """Insert one `StepReport` before the collective call of the function."""
        updates = getattr(fgraph, "update_mapping", None)
        callers = [node for node in fgraph.toposort() if isinstance(node.op, JobOp)]
        if not updates:
            return
        # The first output, if it is a float scalar. `Sync` counts steps itself.
        loss = _loss_of(fgraph)
        if not callers:
            self._count_single_worker(fgraph, loss)
            return
        caller = next((node for node in callers if isinstance(node.op, Sync)), callers[0])
        told = StepReport(caller.op.job_key(), counts=not isinstance(caller.op, Sync))
        if loss and _leads_to(caller, loss[0]):
            loss = []
        if loss or told.counts:
            fgraph.change_input(caller, 0, told(caller.inputs[0], *loss), reason="platoon_tells_loss")

    def _count_single_worker(self, fgraph: Any, loss: list[Any]) -> None:
        """Insert one `StepReport` after the first parameter of a single-worker job."""
        for output, place in fgraph.update_mapping.items():
            # An updated input that is not shared, such as the steps of a scan, has no container.
            container = getattr(fgraph.inputs[place], "container", None)
            worker = None if container is None else _alone.get(container)
            if worker is not None:
                told = StepReport(worker, counts=True)(fgraph.outputs[output], *loss)
                fgraph.change_input("output", output, told, reason="platoon_tells_loss")
                return


def count_single_worker(params: Iterable[Any], worker: Worker) -> None:
    """Make functions that update these parameters report, in a launched single-worker job."""
    _alone.update({param.container: worker for param in params})


# The keys are the memory of the parameters, which copies of a graph share.
_alone: weakref.WeakKeyDictionary[Any, Worker] = weakref.WeakKeyDictionary()


def _loss_of(fgraph: Any) -> list[Any]:
    first = fgraph.outputs[0]
    is_tensor = 0 not in fgraph.update_mapping and isinstance(first.type, theano.tensor.TensorType)
    return [first] if is_tensor and first.ndim == 0 and first.dtype in theano.tensor.float_dtypes else []


def _leads_to(node: Apply, variable: Any) -> bool:
    return any(found.owner is node for found in theano.gof.graph.ancestors([variable]))


# After the ordering at 49.2, which it would disturb, and before in-place changes at 49.5.
theano.compile.optdb.register("platoon_tells_loss", InsertStepReports(), 49.3, "fast_run", "fast_compile")
