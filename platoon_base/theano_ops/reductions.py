"""Ops that combine tensors of all workers inside the compiled function."""

from __future__ import annotations

from typing import Any

import numpy as np
import theano
from theano import tensor
from theano.gof import Apply
from theano.gradient import DisconnectedType

from platoon_base.collectives.base import DTYPES, canonical_op
from platoon_base.collectives.flat import FlatBuffers
from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import connect
from platoon_base.theano_ops.base import JobOp, next_turn, skip_turns
from platoon_base.worker.handle import Worker

__all__ = ["AllReduce", "AllReduceMax", "AllReduceMean", "AllReduceMin", "AllReduceProd", "AllReduceSum", "all_reduce"]


class AllReduce(JobOp):
    """Combine k values element by element with those of all other workers; k inputs of any shapes, k outputs.

    One call of the Op makes one collective call for each dtype among its inputs: values of one dtype travel in one
    flat buffer, which is kept between calls; on the host, large ones travel by themselves. All workers compile
    functions with the same calls of these Ops, on values of the same shapes and dtypes; other parts of the functions
    may differ.

    Parameters
    ----------
    worker : Worker
    compress : bool
        Whether ``--hosts-compression`` may compress sums and means of floats between hosts; for gradients.
    inplace, turn, ordered
        See `JobOp`. An Op without a turn gets one where it is applied, so each application is a call of its own.

    Notes
    -----
    Gradients are those of the sum of all workers' costs, C = sum_r C_r, with g_r = dC_r/dy on worker r:

        sum:   y = sum_r x_r          dC/dx_r = sum_q g_q
        mean:  y = 1/N sum_r x_r      dC/dx_r = 1/N sum_q g_q
        max:   y = max_r x_r          dC/dx_r = [x_r = y] / (number of q with x_q = y) * sum_q g_q;  min likewise
        prod:  y = prod_r x_r         dC/dx_r = (prod_{q != r} x_q) * sum_q g_q
    """

    __props__: tuple[str, ...] = ("worker", "inplace", "turn", "ordered", "compress")
    reduction: str

    def __init__(
        self,
        worker: Worker,
        inplace: tuple[int, ...] = (),
        turn: int | None = None,
        ordered: bool = False,
        compress: bool = False,
    ) -> None:
        self.worker = worker
        self.compress = compress
        self.turn = turn
        self.ordered = ordered
        self._set_inplace(inplace)
        self._buffers = FlatBuffers(compress=self._compresses)

    def __reduce__(self) -> Any:
        """An Op that is loaded belongs to the job of the process that loads it."""
        props = {name: getattr(self, name) for name in self.__props__ if name != "worker"}
        return _load, (type(self), props)

    def __copy__(self) -> AllReduce:
        return self

    def job_key(self) -> Any:
        """Return the worker."""
        return self.worker

    def fusion_key(self) -> Any:
        """Return a key of the call; None keeps a call that a user made in place alone."""
        return None if self.inplace else (type(self), self.reduction, self._compresses)

    @property
    def _compresses(self) -> bool:
        """Whether this job compresses these values: if not, they are combined in one call with others."""
        return self.compress and self.worker.advanced.compresses_gradients

    def make_node(self, *values: Any) -> Apply:
        """Take one or more tensors."""
        if self.turn is None:
            return self.changed(turn=next_turn()).make_node(*values)
        if len(values) == self.ordered:
            raise ConfigurationError(f"{type(self).__name__} got no value: pass the variables to combine")
        node = super().make_node(*values)
        for variable in self.values(node.inputs):
            if variable.dtype not in DTYPES:
                raise ConfigurationError(
                    f"got {variable} of dtype {variable.dtype}: workers combine {', '.join(DTYPES)}; cast it"
                )
        return node

    def work(self, values: list[Any], own: list[bool]) -> list[Any]:
        """Combine the values with those of the others."""
        outs = [x if mine else self.empty_like(x) for x, mine in zip(values, own)]
        self._buffers.combine(self._call, self.reduction, values, outs)
        return outs

    def empty_like(self, value: Any) -> Any:
        """Allocate memory for a result."""
        return np.empty(value.shape, value.dtype)

    def _call(self, array: Any, op: str, dest: Any, **feedback: Any) -> None:
        self.worker.all_reduce(array, op, dest=dest, **feedback)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Each output depends on the input in its place."""
        count = len(node.inputs)
        return [[i == j for j in range(count)] for i in range(count)]

    def L_op(self, inputs: list[Any], outputs: list[Any], output_grads: list[Any]) -> list[Any]:  # noqa: N802
        """Return the gradients; see the class."""
        grads = list(output_grads)
        used = [i for i, g in enumerate(grads) if not isinstance(g.type, DisconnectedType)]
        for i in [i for i in used if inputs[i].dtype not in tensor.float_dtypes]:
            grads[i] = inputs[i].zeros_like(dtype=theano.config.floatX)
            used.remove(i)
        if used:
            # One Op for all of them, so that a model's gradients travel together.
            found = self.gradient(*([source[i] for i in used] for source in (inputs, outputs, grads)))
            for i, gradient in zip(used, found):
                grads[i] = gradient
        return grads

    def gradient(self, inputs: list[Any], outputs: list[Any], grads: list[Any]) -> list[Any]:
        """Return dC/dx_r for inputs x_r of float dtypes; see the class."""
        raise NotImplementedError

    def _all(self, of: type[AllReduce], *values: Any) -> list[Any]:
        found: list[Any] = of(self.worker)(*values, return_list=True)
        return found

    def __str__(self) -> str:
        return f"{type(self).__name__}{{inplace={self.inplace}, turn={self.turn}}}"


def _load(op: type[AllReduce], props: dict[str, Any]) -> AllReduce:
    skip_turns(props["turn"] or 0)
    return op(connect(), **props)


class AllReduceSum(AllReduce):
    """y = sum_r x_r; see `AllReduce`."""

    reduction = "sum"

    def gradient(self, inputs: list[Any], outputs: list[Any], grads: list[Any]) -> list[Any]:
        """dC/dx_r = sum_q g_q."""
        return self._all(AllReduceSum, *grads)


class AllReduceMean(AllReduce):
    """y = 1/N sum_r x_r, of integers rounded toward zero; see `AllReduce`."""

    reduction = "mean"

    def gradient(self, inputs: list[Any], outputs: list[Any], grads: list[Any]) -> list[Any]:
        """dC/dx_r = 1/N sum_q g_q."""
        return self._all(AllReduceMean, *grads)


class _AllReduceExtreme(AllReduce):
    def gradient(self, inputs: list[Any], outputs: list[Any], grads: list[Any]) -> list[Any]:
        """dC/dx_r = [x_r = y] / (number of q with x_q = y) * sum_q g_q."""
        hits = [tensor.eq(x, y).astype(x.dtype) for x, y in zip(inputs, outputs)]
        summed = self._all(AllReduceSum, *hits, *grads)
        return [hit / count * total for hit, count, total in zip(hits, summed, summed[len(hits) :])]


class AllReduceMax(_AllReduceExtreme):
    """y = max_r x_r; see `AllReduce`."""

    reduction = "max"


class AllReduceMin(_AllReduceExtreme):
    """y = min_r x_r; see `AllReduce`."""

    reduction = "min"


class AllReduceProd(AllReduce):
    """y = prod_r x_r; see `AllReduce`."""

    reduction = "prod"

    def gradient(self, inputs: list[Any], outputs: list[Any], grads: list[Any]) -> list[Any]:
        """dC/dx_r = (prod_{q != r} x_q) * sum_q g_q, also where factors are 0.

        With z = number of q with x_q = 0 and p = prod of the factors that are not 0, the product of the others is
        p / x_r if z = 0, p if z = 1 and x_r = 0, and 0 otherwise.
        """
        zeros = [tensor.eq(x, 0).astype(x.dtype) for x in inputs]
        factors = [x + zero for x, zero in zip(inputs, zeros)]
        summed = self._all(AllReduceSum, *zeros, *grads)
        products = self._all(AllReduceProd, *factors)
        return [
            tensor.switch(tensor.eq(count, zero), p / factor, tensor.zeros_like(p)) * total
            for zero, factor, p, count, total in zip(zeros, factors, products, summed, summed[len(zeros) :])
        ]


OPS = {op.reduction: op for op in (AllReduceSum, AllReduceProd, AllReduceMax, AllReduceMin, AllReduceMean)}


def all_reduce(
    *variables: Any, op: str = "sum", worker: Worker | None = None, inplace: bool = False, compress: bool = False
) -> list[Any]:
    """Combine variables element by element with those of all other workers, in as few calls as possible.

    Independent calls of this function on the way to one compiled function become one, and all workers make the calls
    in the order in which this function was called; only that order must be the same on all of them.

    Parameters
    ----------
    *variables : Theano variables, at least one
        Of the same number, order, shapes and dtypes on every worker.
    op : {"sum", "prod", "max", "min", "mean"}
    worker : Worker, optional
        The default is ``connect()``.
    inplace : bool
        Destroy the variables' values. Seldom needed: Theano's optimizations do so by themselves where nobody else
        needs them. It takes ``theano.function(..., accept_inplace=True)``.
    compress : bool
        Whether ``--hosts-compression`` may compress them between hosts, if they are floats that are summed or averaged;
        for gradients. Each compiled function has residuals of its own.

    Returns
    -------
    list of Theano variable
        One for each; in a single-worker job, the variables themselves.

    Raises
    ------
    ConfigurationError
        If there are no variables, or the operation or a dtype is not known.

    Examples
    --------
    >>> grads = all_reduce(*theano.grad(loss, params), op="mean")                   # doctest: +SKIP
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
    found: list[Any] = OPS[reduction](worker, places, compress=compress)(*variables, return_list=True)
    return found
