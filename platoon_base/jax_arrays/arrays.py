"""Changeable arrays of JAX on a CUDA device, for the kernels of a center."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from platoon_base.device_arrays import CudaArray, Flush, Queue
from platoon_base.devices.cuda import Driver
from platoon_base.errors import PlatoonError
from platoon_base.jax_arrays.calls import Block, call_on_stream
from platoon_base.parameters import Borrowed

# Interval of checks for a failed program while waiting for its call.
_POLL_INTERVAL_S = 1.0


class JaxArray(CudaArray):
    """A changeable array on a device; a change may use the memory of a ``donated`` value."""

    def __init__(self, value: Any, donated: bool = False) -> None:
        super().__init__(value.shape, value.dtype, device_of(value.sharding).local_hardware_id)
        self.value = value
        self._donated = donated

    @staticmethod
    def change(arrays: Sequence[JaxArray], queue: Queue) -> None:
        """Queue work on copies of the values, or on donated ones, among JAX's programs."""
        donated = all(array._donated for array in arrays)
        values, failure = change_now([array.value for array in arrays], donated, queue)
        for array, value in zip(arrays, values):
            array.value = value
        if failure is not None:
            raise failure

    @classmethod
    def read(cls, arrays: Sequence[JaxArray], queue: Queue) -> None:
        values = jax.block_until_ready([array.value for array in arrays])
        queue([value.unsafe_buffer_pointer() for value in values], 0)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.value, dtype)

    def __setitem__(self, key: Any, values: Any) -> None:
        if key is not Ellipsis:
            raise TypeError(f"got [{key!r}]: JAX arrays are immutable; set all values with [...]")
        given = values.value if isinstance(values, JaxArray) else np.broadcast_to(values, self.shape)
        device = device_of(self.value.sharding) if getattr(self.value, "committed", True) else None
        self.value = jnp.array(given, self.dtype, copy=True, device=device)

    def __getitem__(self, key: Any) -> JaxArray:
        return JaxArray(self.value[key])

    def reshape(self, shape: tuple[int, ...]) -> JaxArray:
        return JaxArray(self.value.reshape(shape))

    def copy(self) -> JaxArray:
        """Return a JaxArray with a copy, which may be donated."""
        return JaxArray(jnp.copy(self.value))


class JaxArrays(Borrowed):
    """Many arrays on one device; each JaxArray is made on demand."""

    # `like` is the object of an earlier list only if shapes, dtypes and device are the same.
    # `are_to_be_given_back` is False while the values are those that were borrowed.

    def __init__(self, values: list[Any], donated: bool, like: object) -> None:
        self.donated, self.like, self.are_to_be_given_back = donated, like, True
        self._known = values
        self._made: dict[int, JaxArray] = {}

    def change(self, queue: Queue, may_wait: bool = False) -> Flush | None:
        """Queue work that changes the arrays; see `DeviceRuntime.change`."""
        return self.change_some(range(len(self)), queue, may_wait)

    def change_some(self, indices: Sequence[int], queue: Queue, may_wait: bool) -> Flush | None:
        values = self.values
        changed, failure = change_now([values[i] for i in indices], self.donated, queue)
        self.put(indices, changed)
        if failure is not None:
            raise failure
        return None

    def copies(self) -> list[Any]:
        """Return copies of the values, made by one program, for `restore`."""
        copied, failure = change_now(self.values, False, _nothing)
        if failure is not None:
            raise failure
        return copied

    def restore(self, copies: list[Any]) -> None:
        # Copies of arrays that were borrowed one by one are `JaxArray` objects.
        self.put(range(len(copies)), [getattr(copy, "value", copy) for copy in copies])

    @property
    def values(self) -> list[Any]:
        values = self._current()
        for index, array in self._made.items():
            values[index] = array.value
        return values

    @values.setter
    def values(self, values: list[Any]) -> None:
        self.put(range(len(values)), values)

    def put(self, indices: Sequence[int], values: list[Any]) -> None:
        known = self._current()
        for index, value in zip(indices, values):
            known[index] = value
            if index in self._made:
                self._made[index].value = value

    def _current(self) -> list[Any]:
        """Return the values without changes of arrays that were made from them."""
        return self._known

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, index: Any) -> Any:
        """Return one array, or some that share changes with the whole."""
        everything = range(len(self))
        if isinstance(index, (slice, list)):
            chosen = index if isinstance(index, list) else [*everything[index]]
            return self if chosen == [*everything] else _Part(self, chosen)
        index, values = everything[index], self._current()
        if index not in self._made:
            self._made[index] = JaxArray(values[index], self.donated)
        return self._made[index]


class _Part(JaxArrays):
    def __init__(self, whole: JaxArrays, indices: list[int]) -> None:
        super().__init__([], whole.donated, None)
        self._whole, self._indices = whole, indices

    def change(self, queue: Queue, may_wait: bool = False) -> Flush | None:
        return self._whole.change_some(self._indices, queue, may_wait)

    @property
    def values(self) -> list[Any]:
        values = self._whole.values
        return [values[i] for i in self._indices]

    @values.setter
    def values(self, values: list[Any]) -> None:
        self._whole.put(self._indices, values)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        return self._whole[[self._indices[i] for i in index] if isinstance(index, list) else self._indices[index]]


class AwaitedArrays(JaxArrays):
    """Arrays that the next program gets and changes itself, unless they are read earlier."""

    # `later` puts off changes until the program starts, see `jax_groups.StepCall`.

    def __init__(self, later: Any, count: int, like: object) -> None:
        super().__init__([None] * count, True, like)
        self.are_to_be_given_back = False
        self._later = later

    def change_some(self, indices: Sequence[int], queue: Queue, may_wait: bool) -> Flush | None:
        if not may_wait or not self._later.put_off(indices, queue):
            return super().change_some(indices, queue, may_wait)
        self.are_to_be_given_back = False
        flush: Flush = self._later.flush
        return flush

    def _current(self) -> list[Any]:
        if not self.are_to_be_given_back:
            values = self._later.values()  # If this raises, nothing is given back.
            self.are_to_be_given_back = True
            self.put(range(len(self)), values)
        return self._known


class _BlockArray(CudaArray):
    """Memory of a program during its call; reading it waits for the program's earlier work."""

    def __init__(self, block: Block, shape: tuple[int, ...], stream: int, driver: Driver, ordinal: int) -> None:
        super().__init__(shape, block.dtype, ordinal)
        self._block, self._stream, self._driver = block, stream, driver

    @staticmethod
    def change(arrays: Sequence[_BlockArray], queue: Queue) -> None:
        queue([array._block.address for array in arrays], arrays[0]._stream)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        found = np.empty(self.shape, self.dtype)
        self._driver.finish(self._stream)
        if found.size:
            self._driver.read(self._block.address, found)
        return np.asarray(found, dtype)

    def __setitem__(self, key: Any, values: Any) -> None:
        if key is not Ellipsis:
            raise TypeError(f"got [{key!r}]: set all values with [...]")
        found = np.ascontiguousarray(np.broadcast_to(values, self.shape), self.dtype)
        if found.size:
            self._driver.queue_write(self._block.address, found, self._stream)

    def __getitem__(self, key: Any) -> Any:
        """Return a copy of some elements of a vector on the host."""
        chosen = range(self.size)[key]
        found = np.empty(len(chosen), self.dtype)
        self._driver.finish(self._stream)
        for i, at in enumerate(chosen):
            self._driver.read(self._block.address + at * self.dtype.itemsize, found[i : i + 1])
        return found

    def reshape(self, shape: tuple[int, ...]) -> _BlockArray:
        size = (self.size,) if shape == (-1,) else shape
        return _BlockArray(self._block, size, self._stream, self._driver, self.context.ordinal)

    def copy(self) -> CudaArray:
        raise NotImplementedError("memory of a program has no copies on the device")


class BlockArrays(Borrowed):
    """The arrays of a program during its call, which is their only use."""

    # Under vmap blocks are larger than the shapes.

    def __init__(
        self,
        blocks: Sequence[Block],
        shapes: Sequence[tuple[int, ...]],
        stream: int,
        driver: Driver,
        ordinal: int,
        like: object = None,
    ) -> None:
        self.like = like
        self._blocks, self._stream, self._driver, self._ordinal = blocks, stream, driver, ordinal
        self._shapes = [
            shape if block.size == math.prod(shape) else (block.size // math.prod(shape), *shape)
            for block, shape in zip(blocks, shapes)
        ]

    def change(self, queue: Queue, may_wait: bool = False) -> Flush | None:
        queue([block.address for block in self._blocks], self._stream)
        return None

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (slice, list)):
            chosen = index if isinstance(index, list) else range(len(self))[index]
            of_these = [self._blocks[i] for i in chosen], [self._shapes[i] for i in chosen]
            return BlockArrays(*of_these, self._stream, self._driver, self._ordinal, self.like)
        return _BlockArray(self._blocks[index], self._shapes[index], self._stream, self._driver, self._ordinal)


def on_cuda(value: Any, donated: bool = False) -> JaxArray | None:
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


# Devices by the id of the sharding: comparing two shardings takes a microsecond per array.
_devices: dict[int, tuple[Any, Any]] = {}
_MOST_SHARDINGS = 10_000


class _Program:
    """A JAX program that copies arrays unless they are donated, and then calls a handler."""

    # The host waits for the call at the start of the program, but not for the device.

    def __init__(self, donates: bool) -> None:
        compiled = jax.jit(lambda values: call_on_stream(self, values), donate_argnums=0 if donates else ())
        self._compiled = compiled
        self._turn = threading.Lock()
        self._called = threading.Event()
        self._work: Queue | None = None
        self._failure: BaseException | None = None

    def run(self, values: list[Any], work: Queue) -> tuple[list[Any], BaseException | None]:
        """Return values that ``work(addresses, stream)`` changes, and its exception."""
        with self._turn:
            self._called.clear()
            self._work, self._failure = work, None
            try:
                found: list[Any] = self._compiled(values)
                while not self._called.wait(_POLL_INTERVAL_S):
                    # This program or an earlier one has failed.
                    if found[0].is_ready() and not self._called.is_set():
                        jax.block_until_ready(found)
                        raise PlatoonError("JAX ended a synchronization without executing it")
            finally:
                self._work = None
            return found, self._failure

    def __call__(self, blocks: Sequence[Block], stream: int) -> None:
        """Queue the current work; its exception is stored for the caller of `run`."""
        try:
            if self._work is not None:
                self._work([block.address for block in blocks], stream)
        except BaseException as exc:
            self._failure = exc
        self._called.set()


def change_now(values: list[Any], donated: bool, queue: Queue) -> tuple[list[Any], BaseException | None]:
    """Return values that a program has changed by queued work, and the exception of that work."""
    try:
        changed, failure = _programs[donated].run(values, queue)
    except BaseException:
        _begin_anew()
        raise
    if failure is not None:
        _begin_anew()
    return changed, failure


def _nothing(addresses: list[int], stream: int) -> None:
    """Queue nothing."""


_programs = [_Program(donates) for donates in (False, True)]


def _begin_anew() -> None:
    """Replace the programs, as a failed one may still make its call."""
    _programs[:] = [_Program(donates) for donates in (False, True)]
