"""Initial values: check that all workers have the same model, and copy one worker's values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.dtypes import COLLECTIVE, Array
from platoon_base.errors import ConfigurationError, LayoutMismatchError, WorkerLostError
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.parameters import Parameters
from platoon_base.system.text import to_bytes
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker

_SHOWN_CHARACTERS, _AROUND_CHARACTERS = 200, 30


class Variable(Protocol):
    """A variable with the methods of Theano's shared variables."""

    @property
    def name(self) -> str | None: ...

    def get_value(self, borrow: bool = False) -> Any: ...

    def set_value(self, value: Any) -> None: ...


def values_of(variables: Iterable[Any]) -> list[Array]:
    """Return the values; where variables can, all copies from devices begin before the first is awaited."""
    taken = list(variables)
    for variable in taken:
        if hasattr(variable, "prefetch_value"):
            variable.prefetch_value()
    return [np.asarray(variable.get_value(borrow=True)) for variable in taken]


def set_values(variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Set the values; variables of one kind that can, copy them to their device together."""
    kinds = {type(variable) for variable in variables}
    together = getattr(kinds.pop(), "set_values", None) if len(kinds) == 1 else None
    if together is not None:
        together(variables, values)
        return
    for variable, value in zip(variables, values):
        variable.set_value(value)


def copy_first_values(
    variables: Sequence[Variable],
    worker: Worker,
    settings: str = "",
    participants: Sequence[int] | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> None:
    """Copy the first participant's values to all others; a collective call of the participants.

    Before anything changes, every worker raises `LayoutMismatchError` if layouts or ``settings``
    differ.
    """
    values = values_of(variables)
    layout = Layout.of(values, [variable.name or "" for variable in variables])
    if participants is None or len(participants) == worker.global_size:
        require_same_layout(layout, worker, settings, timeout_s=timeout_s)
        copy_values(variables, worker, timeout_s=timeout_s)
        return
    name = f"first values {hashlib.sha256(layout.fingerprint + to_bytes(settings)).hexdigest()[:16]}"
    if not copy_to_those_left(variables, worker, participants[0], name, timeout_s=timeout_s):
        raise WorkerLostError(
            f"rank {participants[0]}, which provides the initial values of all workers, was lost "
            "meanwhile; read its log"
        )


def copy_to_those_left(
    variables: Sequence[Variable], worker: Worker, root: int, name: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> bool:
    """Copy rank ``root``'s values to all that are left; return whether it was done."""
    mine = worker.global_rank == root
    values = values_of(variables)
    words = [_words(variable.name, value) for variable, value in zip(variables, values)]
    # A sum in which all other terms are zero. float64 holds each word exactly.
    terms = [each if mine else np.zeros_like(each) for each in words]
    summed = worker.advanced.sum_arrays(name, terms, timeout_s=timeout_s)
    if root not in summed.ranks:
        return False
    if not mine:
        for variable, value, total in zip(variables, values, summed.arrays):
            variable.set_value(_from_words(total.astype(np.int32), value))
    return True


def copy_values(
    variables: Sequence[Variable], worker: Worker, root: int = 0, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Copy one worker's values, bit for bit, to all others; layouts are not checked."""
    for variable in variables:
        array = np.array(variable.get_value(borrow=True), order="C")
        if array.dtype.name in COLLECTIVE:
            worker.broadcast([array], root, timeout_s=timeout_s)
        else:
            words = _words(variable.name, array)
            worker.broadcast([words], root, timeout_s=timeout_s)
            array = _from_words(words, array)
        variable.set_value(array)


def _words(name: str | None, value: Any) -> Array:
    """Return the bytes of an array as words of 32 bits, the last one padded with zeros."""
    array = np.array(value, order="C")
    if array.dtype.hasobject:
        raise ConfigurationError(
            f"got {name} of dtype {array.dtype}, which cannot be copied to other workers: keep "
            "objects and strings out of variables, and use the same ones on all workers"
        )
    raw = array.reshape(-1).view(np.uint8)
    return np.concatenate([raw, np.zeros(-raw.size % 4, np.uint8)]).view(np.int32)


def _from_words(words: Array, like: Any) -> Array:
    """Return the array that `_words` has encoded, with the dtype and shape of ``like``."""
    array = np.asarray(like)
    return words.view(np.uint8)[: array.nbytes].view(array.dtype).reshape(array.shape)


def start_together(params: Iterable[Any], worker: Worker, settings: str = "") -> Layout:
    """Copy the first worker's parameters to all others, unless layouts or settings differ."""
    parameters = Parameters(params)
    if worker.global_size > 1:
        worker.advanced.begin_averages()
        require_same_layout(parameters.layout, worker, settings)
        values = parameters.borrow()
        worker.broadcast(values)
        parameters.give_back(values)
        worker.advanced.announce(bound=True)
    return parameters.layout


def require_same_layout(
    layout: Layout, worker: Worker, settings: str = "", *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Raise `LayoutMismatchError` on every worker if layouts or settings differ."""
    fingerprint = hashlib.sha256(layout.fingerprint + to_bytes(settings)).digest()
    prints = worker.all_gather(np.frombuffer(fingerprint, np.uint8), timeout_s=timeout_s)
    if (prints == prints[0]).all():
        return
    for rank, (other, wanted) in enumerate(_exchange(layout, settings, worker)):
        layout.require_same(other, whose=f"worker {rank}'s")
        if settings != wanted:
            own, others = _around_the_difference(settings, wanted)
            raise LayoutMismatchError(
                f"got {own}, and worker {rank} has {others}, so their results would not match: "
                "call it with the same arguments on every worker"
            )


def _around_the_difference(mine: str, other: str) -> tuple[str, str]:
    """Return both texts; of long ones only the part that differs, with a few words around it."""
    if max(len(mine), len(other)) <= _SHOWN_CHARACTERS:
        return mine, other
    begin = _common_length(mine, other)
    end = _common_length(mine[begin:][::-1], other[begin:][::-1])
    start = mine.rfind(" ", 0, max(0, begin - _AROUND_CHARACTERS)) + 1

    called = mine[: mine.find("(", 0, start) + 1]

    def part(text: str) -> str:
        stop = text.find(" ", len(text) - end + _AROUND_CHARACTERS)
        return f"{called}... " * (start > 0) + text[start : stop if stop >= 0 else None] + " ..." * (stop >= 0)

    return part(mine), part(other)


def _common_length(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def _exchange(layout: Layout, settings: str, worker: Worker) -> Iterator[tuple[Layout, str]]:
    text = np.frombuffer(json.dumps([settings, layout.specs]).encode(), np.uint8)
    lengths = worker.all_gather(np.array([text.size]))[:, 0]
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: text.size] = text
    for row, length in zip(worker.all_gather(padded), lengths):
        wanted, specs = json.loads(row[:length].tobytes())
        yield Layout(tuple(ParameterSpec(name, tuple(shape), dtype) for name, shape, dtype in specs)), wanted
