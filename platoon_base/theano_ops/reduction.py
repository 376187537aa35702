"""How a scalar Theano expression combines the rows of a mini-batch: as a sum or a mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import theano
from theano import scalar, tensor
from theano.compile import SharedVariable
from theano.scan_module.scan_op import Scan
from theano.tensor.elemwise import CAReduce, DimShuffle, Elemwise

SUM, MEAN, CONSTANT, UNKNOWN = "sum", "mean", "constant", "unknown"
RATIO = "ratio"  # A sum divided by another value of the batch, such as the sum of the rows' weights.
# A sum divided by the length of another axis. In batches of sequences that begin with time it is a mean over rows.
PART = "sum divided by a length"

Kind = Union[str, int]  # An int is the axis of the rows, which are not combined yet.
_LINEAR = (scalar.Add, scalar.Sub, scalar.Neg, scalar.Identity, scalar.Cast)
UNSURE = (
    "cannot tell from the graph whether the loss is a mean or a sum over the rows of a "
    "mini-batch, and uses the mean over the workers. If it is a sum, steps are 1/N as long as in "
    "one process with all rows: pass average=False for a sum, average=True for a mean"
)
_LARGEST_FACTOR = 4  # Beyond it a constant divisor may be the number of rows.


def reduction_of(expression: Any) -> str:
    """Return how an expression combines the rows, which are the first axis of its inputs."""
    if not isinstance(expression, theano.Variable) or getattr(expression, "ndim", None) != 0:
        return UNKNOWN
    # CONSTANT depends on no input, as a penalty of weights. UNKNOWN includes sums of several kinds,
    # and possible means by a constant divisor.
    kind = _Kinds().of(expression)
    return UNKNOWN if isinstance(kind, int) or kind == PART else kind


def add_up_sums(loss: Any, workers: int) -> tuple[Any, set[str]]:
    """Multiply sums over rows by ``workers``, for the gradients of one process with all rows."""
    # Returns the kinds of its terms too.
    kind = reduction_of(loss)
    node = loss.owner
    if kind == SUM:
        return loss * tensor.constant(workers, dtype=loss.dtype), {kind}
    if kind != UNKNOWN or node is None or not _is_elemwise(node, _LINEAR):
        return loss, {kind}
    terms = [add_up_sums(each, workers) for each in node.inputs]
    return node.op(*(term for term, _ in terms)), {found for _, kinds in terms for found in kinds}


class _Kinds:
    def __init__(self) -> None:
        self._known: dict[Any, Kind] = {}

    def of(self, variable: Any) -> Kind:
        # Not recursive: graphs may be deeper than Python's stack.
        pending = [variable]
        while pending:
            top = pending[-1]
            missing = [each for each in (top.owner.inputs if top.owner else []) if each not in self._known]
            if missing and top not in self._known:
                pending += missing
                continue
            if top not in self._known:
                self._known[top] = self._kind(top)
            pending.pop()
        return self._known[variable]

    def _kind(self, variable: Any) -> Kind:
        node = variable.owner
        if node is None:  # A scalar of floats is a weight of a term, one of integers may be the number of a batch.
            weight = variable.ndim == 0 and variable.dtype in tensor.float_dtypes
            return CONSTANT if weight or isinstance(variable, (theano.Constant, SharedVariable)) else 0
        kinds = [self._known[each] for each in node.inputs]
        if all(kind == CONSTANT for kind in kinds):
            return CONSTANT
        if isinstance(node.op, CAReduce):
            return self._of_reduction(node, kinds[0])
        if isinstance(node.op, (DimShuffle, tensor.Reshape)):
            kind = kinds[0]
            if isinstance(kind, str):
                return kind
            return _position(node.op.new_order, kind) if isinstance(node.op, DimShuffle) else 0
        if _is_elemwise(node, scalar.TrueDiv) and not isinstance(kinds[0], int):
            return self._of_quotient(node, kinds[0], kinds[1])
        axes = [kind for kind in kinds if isinstance(kind, int)]
        if isinstance(node.op, tensor.Dot) and axes:
            return _of_product(node, kinds)
        if isinstance(node.op, Elemwise) and axes:
            return axes[0] if len(set(axes)) == 1 else UNKNOWN  # Several: all pairs of rows.
        reduced = set(kinds) - {CONSTANT}
        scales = _is_elemwise(node, scalar.Mul) and sum(kind != CONSTANT for kind in kinds) == 1
        adds = _is_elemwise(node, _LINEAR) and (CONSTANT not in kinds or MEAN in reduced)
        if (scales or adds) and len(reduced) == 1:
            shrinks = scales and any(0 < abs(c) <= 1 / _LARGEST_FACTOR for c in _constants(node.inputs))
            return UNKNOWN if shrinks and SUM in reduced else reduced.pop()
        if isinstance(node.op, Scan) and axes:
            return max(axes) if max(axes) < variable.ndim else UNKNOWN
        return 0 if axes and variable.ndim else UNKNOWN

    def _of_reduction(self, node: Any, kind: Kind) -> Kind:
        if isinstance(kind, str):
            return kind if isinstance(node.op.scalar_op, scalar.Add) else UNKNOWN
        axes: Sequence[int] = range(node.inputs[0].ndim) if node.op.axis is None else node.op.axis
        if kind not in axes:
            return kind - sum(int(axis) < kind for axis in axes)
        return SUM if isinstance(node.op.scalar_op, scalar.Add) else UNKNOWN

    def _of_quotient(self, node: Any, kind: Kind, divisor: Kind) -> Kind:
        if divisor == CONSTANT:
            small = all(abs(c) < _LARGEST_FACTOR for c in _constants(node.inputs[1:]) or [_LARGEST_FACTOR])
            return kind if small or kind != SUM else UNKNOWN
        measured = _measured_axis(node.inputs[1])
        if measured is None:
            return RATIO if kind == SUM else UNKNOWN
        array, axis = measured
        counts_rows = self._known.get(array) == axis
        if counts_rows:
            return MEAN if kind in (SUM, PART) else UNKNOWN
        return PART if kind == SUM else kind


def _of_product(node: Any, kinds: Sequence[Kind]) -> Kind:
    """Return the axis of the rows in a product; it is unknown if rows are multiplied."""
    (left, right), (first, second) = kinds, [int(each.ndim) for each in node.inputs]
    if right == CONSTANT and left != first - 1:
        return left
    if left == CONSTANT and second == 2 and right == 1:
        return int(first) - 1
    return UNKNOWN


def _is_elemwise(node: Any, ops: Any) -> bool:
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, ops)


def _position(order: Any, axis: int) -> Kind:
    return list(order).index(axis) if axis in order else UNKNOWN


def _constants(variables: Any) -> list[float]:
    stripped = [_stripped(each) for each in variables]
    return [float(each.data.flat[0]) for each in stripped if isinstance(each, tensor.Constant) and each.data.size == 1]


def _stripped(variable: Any) -> Any:
    while variable.owner is not None and (
        isinstance(variable.owner.op, DimShuffle) or _is_elemwise(variable.owner, (scalar.Cast, scalar.Identity))
    ):
        variable = variable.owner.inputs[0]
    return variable


def _measured_axis(variable: Any) -> tuple[Any, int] | None:
    """Return the array and the axis whose length a variable is; None for other variables."""
    found = _stripped(variable).owner
    if found is None:
        return None
    if isinstance(found.op, tensor.opt.Shape_i):
        return found.inputs[0], found.op.i
    if not isinstance(found.op, tensor.Subtensor) or len(found.op.idx_list) != 1:
        return None
    index: float | None = found.op.idx_list[0] if isinstance(found.op.idx_list[0], int) else None
    if index is None and len(found.inputs) == 2:
        index = next(iter(_constants(found.inputs[1:])), None)
    shape = _stripped(found.inputs[0]).owner
    if index is None or shape is None or not isinstance(shape.op, theano.compile.ops.Shape):
        return None
    array = shape.inputs[0]
    return array, int(index) % max(1, array.ndim)
