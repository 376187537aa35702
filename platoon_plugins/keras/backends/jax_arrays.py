"""Arrays of JAX on a CUDA device, for a center on devices, which changes copies of them within a JAX program."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from platoon_base.device_arrays import CudaArray, Queue
from platoon_base.errors import PlatoonError
from platoon_plugins.keras.backends import xla_calls

__all__ = ["JaxArray", "JaxArrays", "device_of", "on_cuda"]

_POLL_INTERVAL_S = 1.0  # between checks, during the wait for a program's call, whether the program has failed


class JaxArray(CudaArray):
    """A changeable array on a device. As a jax.Array is immutable, each change replaces ``value``.

    Parameters
    ----------
    value : jax.Array
        An array on one device.
    donated : bool
        Whether a change may use the memory of ``value``, which JAX then deletes.

    Attributes
    ----------
    value : jax.Array
    """

    def __init__(self, value: Any, donated: bool = False) -> None:
        super().__init__(value.shape, value.dtype, device_of(value.sharding).local_hardware_id)
        self.value = value
        self._donated = donated

    @staticmethod
    def change(arrays: Sequence[JaxArray], queue: Queue) -> None:
        """Let work be queued on copies of the values, or on donated ones, in the order of JAX's other programs."""
        with _anew_after_errors():
            if isinstance(arrays, JaxArrays):
                arrays.values = _programs[arrays.donated].run(arrays.values, queue)
                return
            values = _programs[all(array._donated for array in arrays)].run([array.value for array in arrays], queue)
            for array, value in zip(arrays, values):
                array.value = value

    @staticmethod
    def arrive() -> None:
        """Wait until all work that was given to `change` is queued, and raise the exception of any that failed."""
        with _anew_after_errors():
            for program in _programs:
                program.arrive()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.value, dtype)

    def __setitem__(self, key: Any, values: Any) -> None:
        """Set all values at once."""
        if key is not Ellipsis:
            raise TypeError(f"got [{key!r}]: JAX's arrays do not change; set all values, by [...]")
        given = values.value if isinstance(values, JaxArray) else np.broadcast_to(values, self.shape)
        self.value = jnp.array(given, self.dtype, copy=True, device=device_of(self.value.sharding))

    def __getitem__(self, key: Any) -> JaxArray:
        return JaxArray(self.value[key])

    def reshape(self, shape: tuple[int, ...]) -> JaxArray:
        return JaxArray(self.value.reshape(shape))

    def copy(self) -> JaxArray:
        """Return a JaxArray with a copy of the value, which may be donated to the next step or change."""
        return JaxArray(jnp.copy(self.value))


class JaxArrays(Sequence[JaxArray]):
    """Many arrays on one device; a JaxArray is made of those that are asked for.

    Parameters
    ----------
    values : list of jax.Array
    donated : bool
        Whether a change may use their memory.
    like : object
        The same for lists of arrays with the same shapes, dtypes and devices.

    Attributes
    ----------
    values : list of jax.Array
    donated : bool
    like : object
    """

    def __init__(self, values: list[Any], donated: bool, like: object) -> None:
        self.donated, self.like = donated, like
        self._values = values
        self._made: dict[int, JaxArray] = {}

    @property
    def values(self) -> list[Any]:
        for index, array in self._made.items():
            self._values[index] = array.value
        return self._values

    @values.setter
    def values(self, values: list[Any]) -> None:
        self._values = values
        for index, array in self._made.items():
            array.value = values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))] if index != slice(len(self)) else self
        if index not in self._made:
            self._made[index] = JaxArray(self._values[index], self.donated)
        return self._made[index]

    @staticmethod
    def change(arrays: JaxArrays, queue: Queue) -> None:
        """Let work be queued on all of them; see `JaxArray.change`."""
        JaxArray.change(arrays, queue)

    @staticmethod
    def arrive() -> None:
        """Wait until it is queued; see `JaxArray.arrive`."""
        JaxArray.arrive()


def on_cuda(value: Any, donated: bool = False) -> JaxArray | None:
    """Return a JaxArray of a jax.Array; None if that is not on one CUDA device, or NumPy lacks its dtype."""
    device = device_of(value.sharding)
    there = device is not None and device.platform == "gpu"
    return JaxArray(value, donated) if there and value.dtype.kind == "f" else None


def device_of(sharding: Any) -> Any:
    """Return the device of arrays with a sharding; None if there are several."""
    found = _devices.get(id(sharding))
    if found is None:
        if len(_devices) >= _MOST_SHARDINGS:
            _devices.clear()
        devices = list(sharding.device_set)
        found = _devices[id(sharding)] = sharding, devices[0] if len(devices) == 1 else None
    return found[1]


# By the id of a sharding, with the sharding: to compare two takes a microsecond, for each of hundreds of arrays.
_devices: dict[int, tuple[Any, Any]] = {}
_MOST_SHARDINGS = 10_000


class _Program:
    """A JAX program that copies arrays, unless they are donated, and then calls a handler; compiled for each shape.

    JAX starts programs in a thread of its own, one after the other. The host goes on meanwhile, as it does after a step
    of the training: it waits for the call of a program when it makes the next one, or has to know what the center has.
    """

    def __init__(self, donates: bool) -> None:
        self._compiled = jax.jit(self._traced, donate_argnums=0 if donates else ())
        self._turn = threading.Lock()
        self._called = threading.Event()
        self._called.set()
        self._work: Queue | None = None
        self._failure: BaseException | None = None
        self._end: Any = None  # an array of the latest run, which nobody takes, to know whether the program is over

    def _traced(self, values: list[Any]) -> tuple[list[Any], Any]:
        *changed, end = xla_calls.call_on_stream(self, [*values, jnp.zeros(1, jnp.float32)])
        return changed, end

    def run(self, values: list[Any], work: Queue) -> list[Any]:
        """Return values that ``work`` changes; it will get their addresses and the stream of the program."""
        with self._turn:
            self._arrive()
            self._called.clear()
            self._work = work
            try:
                changed, self._end = self._compiled(values)
            except BaseException:
                self._called.set()
                raise
            found: list[Any] = changed
            return found

    def arrive(self) -> None:
        """Wait until the latest work is queued; raise its exception."""
        with self._turn:
            self._arrive()

    def _arrive(self) -> None:
        while not self._called.wait(_POLL_INTERVAL_S):
            if self._end.is_ready():  # without a call: the program has failed, or an earlier one
                self._called.set()
                jax.block_until_ready(self._end)
                raise PlatoonError("JAX has ended a synchronization without making it")
        failure, self._failure, self._work, self._end = self._failure, None, None, None
        if failure is not None:
            raise failure

    def queue(self, blocks: Sequence[xla_calls.Block], stream: int) -> None:
        """Queue the current work; `arrive` raises an exception of it."""
        try:
            if self._work is not None:
                self._work([block.address for block in blocks[:-1]], stream)
        except BaseException as exc:
            self._failure = exc
        self._called.set()


_programs = [_Program(donates) for donates in (False, True)]


@contextlib.contextmanager
def _anew_after_errors() -> Iterator[None]:
    """Replace the programs after an error, as a failed one may still make its call."""
    try:
        yield
    except BaseException:
        _programs[:] = [_Program(donates) for donates in (False, True)]
        raise


@atexit.register
def _let_calls_arrive() -> None:
    """Wait for JAX's threads, which could not call into an interpreter that has ended."""
    with contextlib.suppress(Exception):
        JaxArray.arrive()
