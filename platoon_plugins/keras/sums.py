"""What is summed over the workers: states of metrics, and losses of batches."""

from __future__ import annotations

import dis
import inspect
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from platoon_base import Worker

Array = np.ndarray[Any, Any]

_CALLS_ADD = ("assign_add", "assign_sub")
_FRAMEWORKS = ("keras", "tensorflow", "torch", "jax", "jaxlib")


def only_adds(metric: Any) -> bool:
    """Return whether ``update_state`` only adds to variables, as with ``assign_add``."""
    # Then states are sums over batches. The result is False if it calls other methods, as these are
    # not inspected.
    code, result = _code_of(type(metric), "update_state"), _code_of(type(metric), "result")
    if code is None or result is None or not code.co_varnames or any(_is_code(each) for each in code.co_consts):
        return False
    if any(name.startswith("assign") for name in result.co_names):
        return False
    # Metrics of Keras 2 have no `variables`.
    owner, variables = code.co_varnames[0], getattr(metric, "variables", ())
    if owner in code.co_cellvars or "__class__" in code.co_freevars or not variables:
        return False
    kept = {id(variable) for variable in variables}
    uses = list(_uses(code, owner))
    # A variable to which this method does not add, such as a maximum, may be changed by another method.
    return all(_is_harmless(metric, kept, *use) for use in uses) and kept <= _added(metric, uses)


def _code_of(cls: type, name: str) -> types.CodeType | None:
    """Return the code of a method without decorators of frameworks; None if a user decorated it."""
    method: Any = getattr(cls, name, None)
    while hasattr(method, "__wrapped__"):
        module = getattr(method, "__globals__", {}).get("__name__") or type(method).__module__
        if module.partition(".")[0] not in _FRAMEWORKS:
            return None
        method = method.__wrapped__
    code: types.CodeType | None = getattr(method, "__code__", None)
    return code


def _added(metric: Any, uses: list[tuple[str, str]]) -> set[int]:
    values = [getattr(metric, name, None) for name, next_name in uses if next_name in (*_CALLS_ADD, "update_state")]
    return {id(variable) for value in values for variable in getattr(value, "variables", [value])}


def _uses(code: types.CodeType, owner: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes in ``owner.first.second`` for each use of ``owner``; '' if absent."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for number, step in enumerate(steps):
        loads = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if "_FAST" not in step.opname or owner not in loads:
            continue
        # One instruction may load two variables.
        plain = "LOAD_FAST" in step.opname and owner not in loads[:-1]
        names = [_attribute(each) for each in steps[number + 1 : number + 3]]
        yield (names[0], names[1] if names[0] else "") if plain and len(names) == 2 else ("", "")


def _attribute(step: dis.Instruction) -> str:
    return str(step.argval) if step.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""


def _is_harmless(metric: Any, kept: set[int], name: str, next_name: str) -> bool:
    """Return whether a use only adds to a variable or reads a setting that is a plain value."""
    if not name or _is_own_property(type(metric), name):
        return False
    value = getattr(metric, name, None)
    if id(value) in kept:
        return next_name in _CALLS_ADD
    if next_name == "update_state":
        return type(value).__module__.partition(".")[0] == "keras"
    return value is None or isinstance(value, (bool, int, float, str))


def _is_own_property(cls: type, name: str) -> bool:
    """Return whether an attribute is computed by the user's code, which may read a variable."""
    found = inspect.getattr_static(cls, name, None)
    of = str(getattr(getattr(found, "fget", None), "__module__", ""))
    return hasattr(found, "__get__") and of.partition(".")[0] != "keras"


def _is_code(value: Any) -> bool:
    return isinstance(value, types.CodeType)


_FETCHED_AT_ONCE = 256
ADDED = (
    "got a model whose layers add losses (add_loss), and averaged gradients: such a loss is "
    "assumed to be a mean over the rows of a mini-batch. A sum over rows counts N times less on "
    "N workers than in one process with mini-batches N times as large: divide it by the number "
    "of rows, keras.ops.shape(x)[0]. If it is a mean, or depends only on weights, ignore this"
)


# The losses of each model that is watched.
_losses: weakref.WeakKeyDictionary[Any, BatchLosses] = weakref.WeakKeyDictionary()


def losses_of(model: Any) -> BatchLosses:
    return _losses.setdefault(model, BatchLosses())


class BatchLosses:
    """The losses of batches; the k-th batches of all workers are combined as one large batch."""

    # loss := sum_k R_k L_k / sum_k R_k, L_k = sum_i w_ik l_ik / sum_i w_ik, where R_k is the number
    # of rows of batch k and w_ik the divisor of worker i's loss. Losses that are sums add up. Only
    # batches of an epoch or evaluation that `begin` has started are recorded.

    def __init__(self) -> None:
        self.phase = "train"
        self._batches: dict[str, list[tuple[Any, Any, Any]]] = {}

    def begin(self, phase: str) -> None:
        """Start an epoch or evaluation ("train" or "test"), which becomes the phase of `add`."""
        self.phase = phase
        self._batches[phase] = []

    def end(self) -> None:
        self._batches = {}

    def add(self, loss: Any, weight: Any, rows: Any, training: bool | None = None) -> None:
        """Record a batch; ``weight`` divides its loss: 0 if all is masked, None for a sum."""
        batches = self._batches.get(self.phase if training is None else "train" if training else "test")
        if batches is not None:
            batches.append((loss, weight, rows))
            if not len(batches) % _FETCHED_AT_ONCE:
                batches[-_FETCHED_AT_ONCE:] = map(_fetched, batches[-_FETCHED_AT_ONCE:])

    def count(self, phase: str) -> int:
        return len(self._batches.get(phase, ()))

    def combined(self, phase: str, worker: Worker, name: str) -> float:
        """Return the loss over all workers; a collective call with a unique ``name``."""
        length = max(worker.gather(self.count(phase), name=f"{name}, batches"))
        table = np.zeros((length, 3))
        for row, (loss, weight, rows) in zip(table, map(_fetched, self._batches.get(phase, ()))):
            row[:] = (loss, 0.0, rows) if weight is None else (loss * weight, weight, rows)
        total, divisor, rows = worker.advanced.sum_arrays(name, [table]).arrays[0].T
        # If all tokens of all workers are masked, the loss is 0, as in one process.
        losses = total / np.where(divisor == 0, 1.0, divisor)
        return float((rows * losses).sum() / rows.sum())


def _fetched(batch: tuple[Any, Any, Any]) -> tuple[float, float | None, float]:
    """Return a batch's values as numbers; waits for the device."""
    loss, weight, rows = batch
    return float(loss), None if weight is None else float(weight), float(rows)
