"""The Op that combines tensors of all workers inside the compiled function."""

from __future__ import annotations

from typing import Any

import numpy as np
import theano
from theano import tensor
from theano.gof import Apply
from theano.gradient import DisconnectedType

from platoon_base.collectives.base import canonical_op
from platoon_base.collectives.flat import FlatBuffers
from platoon_base.dtypes import COLLECTIVE
from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import connect
from platoon_base.theano_ops.base import JobOp, next_turn, skip_turns
from platoon_base.worker.handle import Worker


class AllReduce(JobOp):
    """Combine k values of any shapes element by element with those of all other workers.

    One call makes one collective call for each dtype: values of one dtype share a flat buffer,
    except large ones on the host. All workers compile functions with the same calls, on the same
    shapes and dtypes. Gradients are those of C = sum_r C_r, the sum of all workers' costs, with g_r
    = dC_r/dy.
    """

    __props__: tuple[str, ...] = ("worker", "reduction", "inplace", "turn", "ordered", "compress")

    def __init__(
        self,
        worker: Worker,
        reduction: str = "sum",
        inplace: tuple[int, ...] = (),
        turn: int | None = None,
        ordered: bool = False,
        compress: bool = False,
    ) -> None:
        self.reduction = reduction
        self.worker = worker
        self.compress = compress
        self.turn = turn
        self.ordered = ordered
        self._set_inplace(inplace)
        self._buffers = FlatBuffers(compress=self._compresses)

    def __reduce__(self) -> Any:
        """Return a constructor that binds the Op to the job of the process that loads it."""
        props = {name: getattr(self, name) for name in self.__props__ if name != "worker"}
        return _load, (type(self), props)

    def __copy__(self) -> AllReduce:
        return self

    def job_key(self) -> Any:
        return self.worker

    def fusion_key(self) -> Any:
        """Return a key: calls with equal keys are fused. None, for calls that work in place, prevents it."""
        return None if self.inplace else (type(self), self.reduction, self._compresses)

    @property
    def _compresses(self) -> bool:
        """Whether this job compresses these values; if not, other values may share their call."""
        return self.compress and self.worker.advanced.compresses_gradients

    def make_node(self, *values: Any) -> Apply:
        if self.turn is None:
            return self.changed(turn=next_turn()).make_node(*values)
        if len(values) == self.ordered:
            raise ConfigurationError(f"{type(self).__name__} got no value: pass the variables to combine")
        node = super().make_node(*values)
        for variable in self.values(node.inputs):
            if variable.dtype not in COLLECTIVE:
                raise ConfigurationError(
                    f"got {variable} of dtype {variable.dtype}: workers combine {', '.join(COLLECTIVE)}; cast it"
                )
        return node

    def work(self, values: list[Any], own: list[bool]) -> list[Any]:
        outs = [x if mine else self.empty_like(x) for x, mine in zip(values, own)]
        self._buffers.combine(self.worker.all_reduce, self.reduction, values, outs)
        return outs

    def empty_like(self, value: Any) -> Any:
        return np.empty(value.shape, value.dtype)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        count = len(node.inputs)
        return [[i == j for j in range(count)] for i in range(count)]

    def L_op(self, inputs: list[Any], outputs: list[Any], output_grads: list[Any]) -> list[Any]:  # noqa: N802
        grads = list(output_grads)
        used = [i for i, g in enumerate(grads) if not isinstance(g.type, DisconnectedType)]
        for i in [i for i in used if inputs[i].dtype not in tensor.float_dtypes]:
            grads[i] = inputs[i].zeros_like(dtype=theano.config.floatX)
            used.remove(i)
        if used:
            # One Op combines them all, so that a model's gradients need one call.
            gradients = _GRADIENTS.get(self.reduction, _of_extreme)
            found = gradients(self, *([source[i] for i in used] for source in (inputs, outputs, grads)))
            for i, gradient in zip(used, found):
                grads[i] = gradient
        return grads

    def of_same_job(self, reduction: str, *values: Any) -> list[Any]:
        found: list[Any] = AllReduce(self.worker, reduction)(*values, return_list=True)
        return found

    def __str__(self) -> str:
        return f"{type(self).__name__}{{{self.reduction}, inplace={self.inplace}, turn={self.turn}}}"


def _load(op: type[AllReduce], props: dict[str, Any]) -> AllReduce:
    skip_turns(props["turn"] or 0)
    return op(connect(), **props)


def _of_linear(op: AllReduce, inputs: list[Any], outputs: list[Any], grads: list[Any]) -> list[Any]:
    """Return dC/dx_r = sum_q g_q for sums, and 1/N of it for means."""
    return op.of_same_job(op.reduction, *grads)


def _of_extreme(op: AllReduce, inputs: list[Any], outputs: list[Any], grads: list[Any]) -> list[Any]:
    """Return dC/dx_r = [x_r = y] / (number of q with x_q = y) * sum_q g_q."""
    hits = [tensor.eq(x, y).astype(x.dtype) for x, y in zip(inputs, outputs)]
    summed = op.of_same_job("sum", *hits, *grads)
    return [hit / count * total for hit, count, total in zip(hits, summed, summed[len(hits) :])]


def _of_product(op: AllReduce, inputs: list[Any], outputs: list[Any], grads: list[Any]) -> list[Any]:
    """Return dC/dx_r = (prod_{q != r} x_q) * sum_q g_q, also where factors are 0."""
    # With z = number of q with x_q = 0 and p = prod of the factors that are not 0, the product of
    # the others is p / x_r if z = 0, p if z = 1 and x_r = 0, and 0 otherwise.
    zeros = [tensor.eq(x, 0).astype(x.dtype) for x in inputs]
    factors = [x + zero for x, zero in zip(inputs, zeros)]
    summed = op.of_same_job("sum", *zeros, *grads)
    products = op.of_same_job("prod", *factors)
    return [
        tensor.switch(tensor.eq(count, zero), p / factor, tensor.zeros_like(p)) * total
        for zero, factor, p, count, total in zip(zeros, factors, products, summed, summed[len(zeros) :])
    ]


# Functions of lists of inputs x_r, outputs y and gradients g_r, by the reduction.
_GRADIENTS = {"sum": _of_linear, "mean": _of_linear, "prod": _of_product}


def all_reduce(
    *variables: Any, op: str = "sum", worker: Worker | None = None, inplace: bool = False, compress: bool = False
) -> list[Any]:
    """Combine variables element by element with those of all workers, in few calls.

    All workers must call this function in the same order, with the same number, shapes and dtypes.
    Independent calls in one compiled function become one collective call. ``inplace`` needs
    ``theano.function(..., accept_inplace=True)``. ``compress`` lets ``--hosts-compression``
    compress gradients between hosts.
    """
    reduction = canonical_op(op)
    if not variables:
        raise ConfigurationError("got no variable: pass those to combine, such as all_reduce(*grads)")
    if any(isinstance(variable, (list, tuple)) for variable in variables):
        raise ConfigurationError("got a list of variables: pass them one by one, such as all_reduce(*grads)")
    worker = connect() if worker is None else worker
    if worker.global_size == 1:
        return list(variables)
    places = tuple(range(len(variables))) if inplace else ()
    found: list[Any] = AllReduce(worker, reduction, places, compress=compress)(*variables, return_list=True)
    return found
