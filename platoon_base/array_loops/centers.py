"""Parameters of a loop, and moments of its optimizers, that are shared with a center."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.array_loops.groups import Group, places_of, real_parts, real_parts_of
from platoon_base.array_loops.places import Place
from platoon_base.array_loops.trees import Tree
from platoon_base.errors import ConfigurationError
from platoon_base.rules import gossips, rule_for_loop, shares_moments, waits
from platoon_base.worker import Fit, Worker, center_is_on_device

Array = np.ndarray[Any, Any]


class Shared:
    """An array as a parameter of a center; see `platoon_base.parameters.Parameter`.

    It is a copy on the host, also of values on a device.
    """

    def __init__(self, name: str, array: Array) -> None:
        self.name, self._array = name, array

    def borrow(self) -> Array:
        return self._array

    def give_back(self, array: Array) -> None:
        if array is not self._array:
            self._array[...] = array

    def memory(self) -> Array:
        return self._array

    def on_device(self) -> None:
        return None


class LoopCenter:
    """The groups of parameters of a loop, and their center."""

    def __init__(self, worker: Worker, place: Place, rule: Any, sync_every: int | None, on_nonfinite: str) -> None:
        self.worker, self.place, self.fit = worker, place, Fit(worker)
        self._given, self._sync_every, self._on_nonfinite = rule, sync_every, on_nonfinite
        self.groups: dict[Any, Group] = {}
        self._begun_with: list[tuple[Any, int]] = []  # A parameter of each optimizer, with its number.
        self._mixed = False  # Whether two optimizers have the same parameters.
        self._last: Any = None  # The group after whose steps the workers synchronize.
        self._lent: Any = None  # The parameters of the center, if it is on a device.

    def number_of(self, leaf: Any, number: int) -> int:
        """Return the number of the first optimizer whose state was made for the same parameters."""
        for known, of in self._begun_with:
            if known is leaf:
                self._mixed |= of != number
                return of
        self._begun_with.append((leaf, number))
        return number

    def skips(self, key: Any) -> bool:
        """Return whether nothing is due after a step."""
        busy = self.fit.rule is None or key != self._last or self.groups[key].pending
        return not (busy or self.fit.is_last_step)

    def synchronize_there(self, names: list[str], arrays: Any, moments: list[str], key: Any) -> None:
        """Synchronize arrays in the memory of a device; by copies, unless there is a center for one group."""
        if self.fit.rule is None and [*self.groups] == [key]:
            self._share_there(arrays, key)
        elif self._lent is not None and key in self.groups:
            with self._lent.lend(arrays):
                self.fit.step()
        if self._lent is None or key not in self.groups:
            values = [np.asarray(array) for array in arrays]
            self.synchronize(names, values, moments, key)
            for array, value in zip(arrays, values):
                array[...] = value

    def _share_there(self, arrays: Any, key: Any) -> None:
        """Share parameters in the memory of a device, if the center can be there."""
        group = self.groups[key]
        rule, period = rule_for_loop(self._given, self._sync_every, [array.dtype for array in group.arrays])
        self.place.why = "the center is in host memory"
        if self._mixed or waits(rule) or gossips(rule):
            return
        count = len(group.arrays) if shares_moments(rule) else group.trained
        lent = self.place.module.Lent(group.names[:count])
        parameters, moments = lent.parameters[: group.trained], lent.parameters[group.trained :]
        with lent.lend(arrays):
            if center_is_on_device(self.worker, [*parameters, *moments], rule):
                moments = moments if shares_moments(rule) else None
                self.fit.bind()
                self.worker.init_shared_params(parameters, rule, moments=moments, on_nonfinite=self._on_nonfinite)
                self.fit.begin(rule, period)
                self._lent, self._last = lent, key

    def synchronize(self, names: list[str], arrays: list[Array], moments: list[str], key: Any) -> None:
        reals = [real_parts(array) for array in arrays]
        group = self.groups.get(key)
        if group is not None and self._lent is not None:
            raise ConfigurationError(f"got {names[0]} on the host, and on the device before: keep parameters there")
        if group is None:
            self.release()  # Parameters that had no step before are shared too.
            self.groups[key] = Group([*names, *moments], reals, len(moments))
            return
        if self.fit.rule is None:
            _copy(group.arrays, reals)
            group.is_fresh = True
            if all(each.is_fresh for each in self.groups.values()):
                self._share(key)
        else:
            for pending, array in zip(group.pending, reals):
                array += pending
            group.pending = []
            _copy(group.arrays, reals)
            if key == self._last:
                self._step()
        _copy(reals, group.arrays)

    def _step(self) -> None:
        others = [group for key, group in self.groups.items() if key != self._last]
        before = [[array.copy() for array in group.arrays] for group in others]
        self.fit.step()
        _leave_pending(others, before)

    def _share(self, last: Any) -> None:
        named = [
            (Shared(f"{number}/{name}" if len(self.groups) > 1 else name, array), i >= group.trained)
            for number, group in enumerate(self.groups.values())
            for i, (name, array) in enumerate(zip(group.names, group.arrays))
        ]
        dtypes = [each.memory().dtype for each, _ in named]
        rule, period = rule_for_loop(self._given, self._sync_every, dtypes)
        parameters = [each for each, is_moment in named if not is_moment]
        moments = [each for each, is_moment in named if is_moment] if shares_moments(rule) else None
        others = [group for key, group in self.groups.items() if key != last]
        before = [[array.copy() for array in group.arrays] for group in others]
        self.fit.bind()
        self.worker.init_shared_params(parameters, rule, moments=moments, on_nonfinite=self._on_nonfinite)
        if len(self.groups) > 1 and self.place.device is not None:
            self.place.why = "there are several optimizers or models"
        self.place.warn("all parameters of each synchronization", sum(each.memory().nbytes for each, _ in named))
        self.fit.begin(rule, period)
        _leave_pending(others, before)
        self._last = last

    def finish(self) -> None:
        """Wait for synchronizations that are queued on a device, and raise their error."""
        shared = self.worker.advanced.shared
        if self._lent is not None and shared is not None:
            shared.require_last_sync()

    def release(self) -> None:
        if self.fit.rule is not None:
            self.worker.release_shared_params()
            self.fit.rule = None
        if self._lent is not None:
            self.groups[self._last].is_fresh, self._lent = False, None

    def synchronize_all(self, found: Sequence[Tree], values: Sequence[Sequence[Array | None]]) -> set[tuple[int, str]]:
        """Set the values of shared parameters to those of the center; return which they are."""
        if not self.groups:
            return set()
        places: dict[tuple[int, str], Array] = {}
        named = [dict(zip(tree.names, map(real_parts_of, each))) for tree, each in zip(found, values)]
        for group, (i, prefix) in places_of(self.groups, named, self.worker):
            for name, shared in zip(group.names[: group.trained], group.arrays):
                shared[...] = named[i][prefix + name]
                places[i, prefix + name] = shared
            group.pending = []
        if self._lent is not None and not places:
            return set()
        first = next(iter(self.groups))
        if self.fit.rule is None and self.place.device is not None and len(self.groups) == 1:
            arrays = self.groups[first].arrays
            copies = self.place.module.Copies(arrays, len(arrays))
            self._share_there(copies, first)
            if self._lent is not None:  # Then the copies are the first worker's.
                _copy(arrays, list(map(np.asarray, copies)))
        if self.fit.rule is None:
            self._share(first)
        with self._lent_copies(first) as there:
            self.fit.synchronize(whole=True)
            self.finish()
            self.worker.barrier("the end of a pass")
            self.worker.average_hosts()
            self.worker.copy_to_local()
        _copy(list(places.values()), list(map(np.asarray, there)))
        for group in self.groups.values():
            group.pending = []
        for (i, name), array in places.items():
            real_parts_of(values[i][found[i].names.index(name)])[...] = array
        return set(places)

    @contextlib.contextmanager
    def _lent_copies(self, key: Any) -> Iterator[Sequence[Any]]:
        """Lend the center copies of the parameters on a device, if it is there; yield them, without moments."""
        if self._lent is None:
            yield ()
            return
        group = self.groups[key]
        copies = self.place.module.Copies(group.arrays, group.trained)
        with self._lent.lend(copies):
            yield copies[: group.trained]

    @property
    def moments(self) -> list[str]:
        """The names of the moments that the workers share."""
        return [name for group in self.groups.values() for name in group.names[group.trained :]]


def _leave_pending(groups: Sequence[Group], before: Sequence[Sequence[Array]]) -> None:
    for group, values in zip(groups, before):
        changes = [array - value for array, value in zip(group.arrays, values)]
        group.pending = [a + b for a, b in zip(group.pending, changes)] if group.pending else changes


def _copy(to: Sequence[Array], values: Sequence[Array]) -> None:
    for array, value in zip(to, values):
        array[...] = value
