"""Apply a rule, or the step of a round, in one pass: by the C extension, or in blocks by NumPy.

Both give the same bits, and leave elements unchanged whose center value would not be finite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np

from platoon_base.dtypes import C_TYPES, Array, add_up, sum_dtype
from platoon_base.errors import ConfigurationError
from platoon_base.layout import ALIGNMENT, Layout
from platoon_base.rules.center import Adopt, Rule, form_of, names_of
from platoon_base.rules.forms import COMPILED, Form
from platoon_base.rules.outer import OuterRule, step_form_of
from platoon_base.system.imports import extension

# NumPy is several times slower.
EXTENSION: Any = extension("_kernels")

Fused = Callable[..., Optional[tuple[int, int]]]

BLOCK = 32768  # Elements per NumPy call; a copy fits into the cache.
STEP_BLOCK = 2 * BLOCK  # Elements of an outer step, which is made and saved block by block.
HAVE_FUSED = EXTENSION is not None
_ADOPT_STATES = 64  # Maximum number of states in the C loops of `Adopt`.
# The C loops take only this machine's byte order.
_FUSED_DTYPES = {np.dtype(name): name for name in C_TYPES}


class Plan:
    """Synchronization prepared once for the memory of a stripe; all arrays are 1-d."""

    def __init__(
        self,
        center: Sequence[Array],
        local_states: Sequence[Sequence[Array]] = (),
        center_states: Sequence[Sequence[Array]] = (),
    ) -> None:
        self._center = list(center)
        for state in (*local_states, *center_states):
            if len(state) != len(self._center):
                raise ConfigurationError(f"got a state of {len(state)} arrays, and the center has {len(self._center)}")
        self._local_states = [tuple(state[i] for state in local_states) for i in range(len(center))]
        self._center_states = [tuple(state[i] for state in center_states) for i in range(len(center))]
        self._states = len(local_states), len(center_states)
        for c, own, shared in zip(self._center, self._local_states, self._center_states):
            for array in (c, *own, *shared):
                _require_like(array, c)
        self._dtype = self._fused_dtype()
        self._latest: Rule | None = None  # Rule of the last run, whose loops are cached.
        self._fused: Fused | None = None
        fixed = [(c, *own, *shared) for c, own, shared in zip(self._center, self._local_states, self._center_states)]
        # Columns: address of x, of c, of each local and each center state; number of elements.
        rows = [[0, *(a.ctypes.data for a in arrays), arrays[0].size] for arrays in fixed]
        self._table = np.array(rows, dtype=np.int64).reshape(len(rows), -1)
        self._address = self._table.ctypes.data
        self._x_column = self._table[:, 0]

    def run(self, rule: Rule, local: Sequence[Array]) -> tuple[int, int] | None:
        """Apply ``rule`` in place; return (piece, element) of the first one refused, or None."""
        # ``local`` must not overlap the center.
        if (len(rule.local_state), len(rule.center_state)) != self._states:
            raise ConfigurationError(
                f"got {rule!r} with the states {sum(names_of(rule), ())}, and the plan has "
                f"{self._states[0]} local and {self._states[1]} center states: make a plan for "
                "this rule"
            )
        aligned = self._require_fit(local)
        fused = self.fused_form(rule) if aligned else None
        if fused is None:
            return self._run_numpy(rule, local)
        self._x_column[:] = [x.__array_interface__["data"][0] for x in local]
        return fused(self._address, len(self._center), *rule.kernel_args())

    def _require_fit(self, local: Sequence[Array]) -> bool:
        """Raise unless ``local`` can be used; return whether all of it is aligned."""
        if len(local) != len(self._center):
            raise ConfigurationError(f"got {len(local)} arrays, and the center has {len(self._center)}")
        aligned = True
        for x, c in zip(local, self._center):
            if x.flags.carray and x.shape == c.shape and x.dtype == c.dtype:
                continue
            _require_like(x, c)
            if not x.flags.c_contiguous:
                raise ConfigurationError(
                    "got a non-contiguous array: pass C-contiguous arrays, as numpy.ascontiguousarray returns them"
                )
            aligned = False
        return aligned

    def _fused_dtype(self) -> str | None:
        """Return the common dtype of all pieces if they are aligned and have C loops."""
        states = zip(self._center, self._local_states, self._center_states)
        arrays = [a for c, own, shared in states for a in (c, *own, *shared)]
        dtypes = {a.dtype for a in arrays}
        if len(dtypes) != 1 or not all(a.flags.carray for a in arrays):
            return None
        return _FUSED_DTYPES.get(dtypes.pop())

    def fused_form(self, rule: Rule) -> Fused | None:
        """Return the C loops for a rule; None if NumPy has to apply it."""
        if isinstance(rule, Adopt):
            return self._adopt_form(rule)
        if rule is not self._latest:
            form = form_of(rule)
            self._fused = None if form is None or self._dtype is None else _find_loops(form, self._dtype)
            self._latest = rule
        return self._fused

    def _adopt_form(self, rule: Adopt) -> Fused | None:
        """Return the C loops of `Adopt`, which fit any rule's states."""
        adopt = None if self._dtype is None else _find_fused("adopt", self._dtype)
        states = sum(self._states)
        if adopt is None or states > _ADOPT_STATES:
            return None
        return functools.partial(_adopt, adopt, (states, self._states[0], *rule.sets))

    def _run_numpy(self, rule: Rule, local: Sequence[Array]) -> tuple[int, int] | None:
        first = None
        with np.errstate(all="ignore"):  # As in C: ignore the user's settings.
            for piece, x in enumerate(local):
                fixed = (self._center[piece], self._local_states[piece], self._center_states[piece])
                for start in range(0, x.size, BLOCK):
                    refused = _run_block(rule, x, *fixed, slice(start, start + BLOCK))
                    if refused is not None and first is None:
                        first = (piece, start + refused)
        return first


def _adopt(adopt: Fused, about: tuple[int, ...], address: int, pieces: int) -> tuple[int, int] | None:
    return adopt(address, pieces, *about)


def find_fused(kernel: str, dtype: np.dtype[Any]) -> Fused | None:
    """Return the C loops of this name for a dtype; None if there are none."""
    name = _FUSED_DTYPES.get(dtype)
    return None if name is None else _find_fused(kernel, name)


def _find_loops(form: Form, dtype: str) -> Fused | None:
    return _find_fused(form.name, dtype) if COMPILED.get(form.name) is form else None


@functools.cache
def _find_fused(kernel: str, dtype: str) -> Fused | None:
    found: Fused | None = getattr(EXTENSION, f"{kernel}_{dtype}", None)
    return found


def _require_like(array: Array, center: Array) -> None:
    if array.ndim != 1 or array.shape != center.shape or array.dtype != center.dtype:
        raise ConfigurationError(
            f"got an array of shape {array.shape} and dtype {array.dtype}, and the center's has "
            f"{center.shape} and {center.dtype}: pass 1-d arrays of the shared parameters' dtypes "
            "and sizes"
        )
    if not array.flags.writeable:
        raise ConfigurationError("got a read-only array: a synchronization changes it; pass a copy")


def _run_block(
    rule: Rule,
    local: Array,
    center: Array,
    local_states: tuple[Array, ...],
    center_states: tuple[Array, ...],
    block: slice,
) -> int | None:
    """Apply the rule by NumPy to copies of one block, and write back the finite elements."""
    arrays = [local, center, *local_states, *center_states]
    copies = [array[block].copy() for array in arrays]
    split = 2 + len(local_states)
    rule.sync(copies[0], copies[1], tuple(copies[2:split]), tuple(copies[split:]))
    return _write_finite([array[block] for array in arrays], copies, [copies[1], *copies[split:]])


def _write_finite(arrays: Sequence[Array], copies: Sequence[Array], guarded: Sequence[Array]) -> int | None:
    """Write elements back unless one of ``guarded`` is not finite there; return the first element left out."""
    finite = np.isfinite(guarded[0])
    for copy in guarded[1:]:
        finite &= np.isfinite(copy)
    everywhere = bool(finite.all())
    for array, copy in zip(arrays, copies):
        np.copyto(array, copy, where=True if everywhere else finite)
    return None if everywhere else int(np.argmin(finite))


def blocks(size: int) -> Iterator[slice]:
    """Yield slices of `STEP_BLOCK` elements that cover ``size`` elements."""
    for start in range(0, size, STEP_BLOCK):
        yield slice(start, min(start + STEP_BLOCK, size))


def undo_bytes(layout: Layout, states: int) -> int:
    """Return the size of a saved block: its center, and the rule's states."""
    largest = max(min(spec.size, STEP_BLOCK) * np.dtype(spec.dtype).itemsize for spec in layout.specs)
    return (1 + states) * -(-largest // ALIGNMENT) * ALIGNMENT


class RoundKernels:
    """Loops on one piece of a stripe; ``undo`` is the memory for a saved block.

    ``scratch`` has room for the sum of a block.
    """

    def __init__(self, center: Array, states: tuple[Array, ...], undo: Array, scratch: Array) -> None:
        self._center = center
        self._changing = changing = [center, *states]  # Arrays that a step changes.
        width = min(center.size, STEP_BLOCK)
        self._undo = undo[: len(changing) * width * center.itemsize].view(center.dtype).reshape(len(changing), width)
        self._sum = scratch.view(sum_dtype(center.dtype))[:width]
        self._aligned = all(array.flags.carray for array in changing)
        self._starts = np.array([array.ctypes.data for array in changing])
        self._row = np.array([self._sum.ctypes.data, *self._starts, 0])
        self._address = self._row.ctypes.data

    def contribute(self, x: Array, to: Array) -> int | None:
        """Set ``to`` to ``x - c``, or to 0 where that is not finite; return the first such element."""
        fused = find_fused("progress", self._center.dtype) if self._aligned and x.flags.carray else None
        if fused is not None:
            row = np.array([each.__array_interface__["data"][0] for each in (x, self._center, to)] + [x.size])
            refused = fused(row.ctypes.data, 1)
            return None if refused is None else refused[1]
        first = None
        with np.errstate(all="ignore"):
            for block in blocks(x.size):
                value = np.subtract(x[block], self._center[block], out=to[block])
                finite = np.isfinite(value)
                if not finite.all():
                    value[~finite] = 0
                    first = block.start + int(np.argmin(finite)) if first is None else first
        return first

    def copy(self, block: slice) -> None:
        """Save a block before a step."""
        for copy, array in zip(self._undo, self._changing):
            np.copyto(copy[: block.stop - block.start], array[block])

    def put_back(self, block: slice) -> None:
        """Undo a step on a block, which may be half done."""
        for copy, array in zip(self._undo, self._changing):
            np.copyto(array[block], copy[: block.stop - block.start])

    def step(self, rule: OuterRule, block: slice, progress: Sequence[Array], count: int, part: float) -> int | None:
        """Make the outer step on a block by the sum of ``progress``; return the first element refused."""
        size = block.stop - block.start
        total = self._sum[:size]
        add_up([each[block] for each in progress], total)
        form = step_form_of(rule) if self._aligned else None
        fused = None if form is None else find_fused(form.name, self._center.dtype)
        if fused is not None:
            self._row[-1] = size
            np.add(self._starts, block.start * self._center.itemsize, out=self._row[1:-1])
            refused = fused(self._address, 1, count, *rule.step_args(part))
            return None if refused is None else block.start + refused[1]
        return self._step_numpy(rule, block, total / total.dtype.type(count), part)

    def _step_numpy(self, rule: OuterRule, block: slice, mean: Array, part: float) -> int | None:
        arrays = [array[block] for array in self._changing]
        c, *states = [array.copy() for array in arrays]
        rule.step(mean.astype(c.dtype, copy=False), c, tuple(states), part)
        refused = _write_finite(arrays, [c, *states], [c, *states])
        return None if refused is None else block.start + refused
