"""Agreement of workers on state that no rule shares and no gradient trains, such as statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.dtypes import Array
from platoon_base.errors import WorkerLostError
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker
from platoon_base.worker.initial_values import Variable, copy_to_those_left, copy_values, values_of
from platoon_base.worker.value_checksums import checksums

RULES = ("mean", "sum", "first")


class State(NamedTuple):
    """A variable that the workers change, and the rule that determines its common value.

    ::

        v := sum_i w_i v_i / sum_i w_i      "mean"
        v := b + sum_i (v_i - b)            "sum": b is the base, the last common value
        v := v_f                            "first"
    """

    variable: Variable
    rule: str
    base: Array | None = None


def default_rule_of(dtype: Any) -> str:
    """Return "mean" for floats and complex numbers, and "first" for other dtypes."""
    kind = np.dtype(dtype).kind
    return "mean" if kind in "fc" or np.dtype(dtype).name.startswith(("bfloat", "float")) else "first"


def agree(
    states: Sequence[State], worker: Worker, name: str, weight: float = 1.0, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[int]:
    """Set variables to common values; return the ranks that took part; a collective call."""
    taken = [state for state in states if state.rule != "first"]
    copied = [state.variable for state in states if state.rule == "first"]
    values = values_of(state.variable for state in taken)
    terms = [_term(state, value, weight) for state, value in zip(taken, values)]
    pairs = {"weight": (float(weight), 1.0)}
    if copied and weight:
        pairs[str(worker.global_rank)] = (1.0, 1.0)  # This rank counts.
    summed = worker.advanced.sum_arrays(name, terms, pairs, timeout_s=timeout_s)
    total = summed.pairs.pop("weight")[0]
    if not total:
        return summed.ranks
    for state, value, array in zip(taken, values, summed.arrays):
        state.variable.set_value(_agreed(state, value, array / (total if state.rule == "mean" else 1)))
    if copied:
        copy_to_those_left(copied, worker, min(map(int, summed.pairs)), f"{name}, of the first", timeout_s=timeout_s)
    return summed.ranks


def agree_in_step(states: Sequence[State], worker: Worker, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Set variables to common values; faster than `agree`, but all launched workers must call."""
    values = values_of(state.variable for state in states)
    taken = [(state, value) for state, value in zip(states, values) if state.rule != "first"]
    copied = [(state, value) for state, value in zip(states, values) if state.rule == "first"]
    if copied:
        flat = np.frombuffer(b"".join(value.tobytes() for _, value in copied), np.uint8).copy()
        worker.broadcast([flat], timeout_s=timeout_s)
        for (state, value), part in zip(copied, _split(flat, [value.nbytes for _, value in copied])):
            state.variable.set_value(part.view(value.dtype).reshape(value.shape).copy())
    if taken:
        terms = [_term(state, value, 1.0) for state, value in taken]
        summed = worker.all_reduce(np.concatenate([np.ones(1), *map(np.ravel, terms)]), timeout_s=timeout_s)
        for (state, value), term, part in zip(taken, terms, _split(summed[1:], [term.size for term in terms])):
            result = part.reshape(term.shape) / (summed[0] if state.rule == "mean" else 1)
            state.variable.set_value(_agreed(state, value, result))


def _split(flat: Array, sizes: Sequence[int]) -> list[Array]:
    return np.split(flat, np.cumsum(sizes)[:-1])


def _term(state: State, value: Array, weight: float) -> Array:
    if not weight:
        return np.zeros_like(_reals(value), np.float64)
    reals: Array = _reals(value).astype(np.float64)
    if state.rule == "mean":
        return reals * weight
    if value.dtype.kind in "iu":  # The result is exact, also for large numbers.
        change: Array = (value - state.base).astype(value.dtype.str.replace("u", "i")).astype(np.float64)
        return change
    base: Array = _reals(np.asarray(state.base)).astype(np.float64)
    return reals - base


def _agreed(state: State, value: Array, result: Array) -> Array:
    """Return a variable's new value, in its dtype, from the mean or the sum of the changes."""
    if state.rule == "sum" and value.dtype.kind in "iu":
        changed: Array = state.base + result.astype(np.int64).astype(value.dtype)
        return changed
    if state.rule == "sum":
        result = result + _reals(np.asarray(state.base)).astype(np.float64)
    if value.dtype.kind == "c":
        result = result.astype(value.real.dtype).view(value.dtype).reshape(value.shape)
    rounded: Array = (np.rint(result) if value.dtype.kind in "iu" else result).astype(value.dtype)
    return rounded


def _reals(value: Array) -> Array:
    return value.reshape(-1).view(value.real.dtype) if value.dtype.kind == "c" else value


def make_equal(
    variables: Sequence[Variable], worker: Worker, name: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Copy the first worker's value of each variable that differs; a call of all that are left."""
    sums = np.array(checksums(variables), np.int64)
    halves = np.stack([sums & 0xFFFF, sums >> 16])  # Squares of halves are exact in float64.
    summed = worker.advanced.sum_arrays(name, [halves, halves**2], timeout_s=timeout_s)
    # Numbers are equal if N times the sum of their squares is the square of their sum.
    equal = (len(summed.ranks) * summed.arrays[1] == summed.arrays[0] ** 2).all(axis=0)
    apart = [variable for variable, same in zip(variables, equal) if not same]
    if not apart:
        return
    if len(summed.ranks) == worker.global_size:
        with contextlib.suppress(WorkerLostError):  # The remaining workers copy by the call below.
            copy_values(apart, worker, timeout_s=timeout_s)
            return
    for root in summed.ranks:
        if copy_to_those_left(apart, worker, root, f"{name}, of rank {root}", timeout_s=timeout_s):
            return
