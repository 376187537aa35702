"""The variables of a model on JAX, borrowed and given back all at once to save time."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_plugins.keras.backends.aligned import writable
from platoon_plugins.keras.backends.jax_arrays import AwaitedArrays, JaxArrays, device_of, on_cuda
from platoon_plugins.keras.backends.jax_places import Place
from platoon_plugins.keras.backends.jax_state import StepState
from platoon_plugins.keras.backends.jax_step_calls import StepCall

__all__ = ["VariableGroup"]

Array = np.ndarray[Any, Any]


class VariableGroup:
    """Borrows the variables of one model; see `platoon_base.parameters.Group`."""

    def __init__(self, state: StepState, take_over: Callable[[list[Any]], list[Any]]) -> None:
        self._state, self._take_over = state, take_over
        self._lent: list[weakref.ref[Array]] = []
        self._known: tuple[int, Any, list[Place] | None] = (0, None, None)
        # The call of the steps whose arrays have been checked.
        self._awaited: Any = None
        self._devices = _Kind(lambda array: on_cuda(array) is not None)
        self._hosts = _Kind(lambda array: device_of(array.sharding).platform == "cpu" and array.dtype.kind == "f")

    def borrow(self, variables: Sequence[Any]) -> list[Array] | None:
        """Return the memory of all values if possible; None to borrow them one by one."""
        if not _all_donated(variables):
            return None
        arrays = self._arrays(variables)
        if not self._hosts.has(arrays):
            return None
        taken = self._take_over(arrays)
        self._assign(variables, taken)
        found = [writable(np.asarray(array)) for array in taken]
        # The references are weak: JAX would copy memory that is still referenced.
        self._lent = [weakref.ref(array) for array in found]
        return found

    def give_back(self, variables: Sequence[Any], arrays: Sequence[Any]) -> bool:
        """Make borrowed arrays the values again; return whether that is done."""
        if isinstance(arrays, JaxArrays):
            if arrays.are_to_be_given_back:
                self._assign(variables, arrays.values)
            return True
        lent, self._lent = self._lent, []
        # The same arrays are still the memory of the values.
        return _same(arrays, [array() for array in lent])

    def borrow_on_device(self, variables: Sequence[Any]) -> JaxArrays | None:
        """Return the values if all are on one CUDA device; None to borrow them one by one."""
        places = self._places_of(variables)
        call = self._state.call_on(places)
        if call is not None and call is self._awaited:
            return AwaitedArrays(call, len(variables), self._devices.like)
        arrays = self._arrays(variables)
        if not self._devices.has(arrays):
            return None
        # Callbacks may refer to arrays of variables, but not to those in the lists.
        donated = places is not None and _all_donated(variables)
        if donated:
            # Later steps return arrays like these.
            self._awaited = call
        return JaxArrays(arrays, donated, self._devices.like)

    def share_on_device(self, variables: Sequence[Any]) -> None:
        """Let steps synchronize variables themselves; call it before they are compiled."""
        if _all_donated(variables) and self._devices.has(self._arrays(variables)):
            self._state.begin_by_a_call([variable.variable for variable in variables], StepCall.made)

    def forget(self) -> None:
        self._known, self._lent, self._awaited = (0, None, None), [], None

    def _arrays(self, variables: Sequence[Any]) -> list[Any]:
        places = self._places_of(variables)
        return [variable.array for variable in variables] if places is None else self._state.get_all(places)

    def _assign(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        places = self._places_of(variables)
        if places is not None:
            self._state.put_all(places, arrays)
            return
        for variable, array in zip(variables, arrays):
            variable.array = array

    def _places_of(self, variables: Sequence[Any]) -> list[Place] | None:
        """Return the places of the values in the trainer's lists; None if they are not there."""
        if not self._state.is_open:
            return None
        version, known, places = self._known
        if version != self._state.version or known is not variables:
            found = [self._state.place_of(variable.variable) for variable in variables]
            places = None if None in found else [place for place in found if place is not None]
            self._known = self._state.version, variables, places
        return places


class _Kind:
    """Tells whether all arrays of a list are on one device and ``fits(array)`` holds for each."""

    # Programs return arrays with the same sharding and shape objects: only other lists are checked.
    # `like` is a new object whenever shapes, dtypes or devices differ from the previous list.

    def __init__(self, fits: Callable[[Any], bool]) -> None:
        self.like: object = None
        self._fits = fits
        self._shardings: list[Any] = []
        self._shapes: list[Any] = []
        self._good = False

    def has(self, arrays: Sequence[Any]) -> bool:
        """Return whether all arrays are on one device, fit, and are distinct."""
        shardings, shapes = [array.sharding for array in arrays], [array.aval for array in arrays]
        if not (_same(shardings, self._shardings) and _same(shapes, self._shapes)):
            self.like, self._shardings, self._shapes = object(), shardings, shapes
            devices = {device_of(sharding) for sharding in shardings}
            self._good = len(devices) == 1 and None not in devices and all(map(self._fits, arrays))
        return self._good and len(set(map(id, arrays))) == len(arrays)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _all_donated(variables: Sequence[Any]) -> bool:
    return all(map(operator.attrgetter("donated"), variables))
