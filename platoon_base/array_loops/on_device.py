"""Calls out of JAX's programs on a CUDA device, whose values stay in its memory."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from platoon_base.array_loops.trees import is_traced
from platoon_base.devices.cuda import primary_driver
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.jax_arrays import BlockArrays, JaxArrays, call_on_stream, sum_over_workers
from platoon_base.layout import array_on
from platoon_base.parameters import Borrowed
from platoon_base.worker import ErrorFeedback, Worker, require_weight

Array = np.ndarray[Any, Any]

_SAMPLE = 1 << 14  # Elements of gradients, to compare workers.
_WEIGHTS = 1 << 12  # The device is fewer steps behind its programs.


def cuda_device() -> int | None:
    """Return the driver's number of JAX's only local device; None if it has several, or it is no CUDA device."""
    device, *others = jax.local_devices()
    return None if others or not is_cuda(device) else int(device.local_hardware_id)


def is_cuda(device: Any) -> bool:
    return device.platform == "gpu" and "rocm" not in device.client.platform_version


class Device:
    """A CUDA device, whose arrays compiled programs change in place by calls of ``guarded`` functions."""

    def __init__(self, worker: Worker, ordinal: int, guarded: Callable[[Any], Any]) -> None:
        self.ordinal, self._worker, self._guarded = ordinal, worker, guarded
        self._driver = primary_driver(ordinal)
        self._programs: dict[Any, Any] = {}
        self._handlers: dict[Any, Any] = {}
        self.latest: Any = ()  # An element of the latest result: when it is ready, the call has finished.
        self.sums: Any = None  # A DeviceAllReduce, if each worker has its own device and NCCL.
        self._weights: Any = None  # The latest ones that programs have computed, in page-locked memory.
        self._next_weight = 0

    def failure(self) -> PlatoonError | None:
        """Return why sums have failed, or what is wrong with their weights."""
        try:
            if self._weights is not None and not (sound := _weighs(self._weights)).all():
                require_weight(self._weights[~sound][0])
            if self.sums is not None:
                self.sums.require_sound()
        except PlatoonError as exc:
            return exc
        return None

    @staticmethod
    def takes(leaves: Sequence[Any]) -> bool:
        """Return whether values are within a program, or on the device."""
        return is_traced(leaves) or all(
            isinstance(leaf, jax.Array) and leaf.devices() == set(jax.local_devices()) for leaf in leaves
        )

    def average(
        self, key: Any, leaves: Sequence[Any], weight: Any, begin: Callable[[Callable[[], Array]], None]
    ) -> list[Any]:
        """Return weighted averages over workers; ``begin(sample)`` is called before each."""
        size, rank = self._worker.global_size, self._worker.global_rank
        is_computed = is_traced([weight])

        def queue(blocks: Sequence[Any], stream: int) -> None:
            begin(lambda: self._sample(blocks[0], size if len(blocks) == 1 else 0, stream))
            add_up(blocks, stream)

        def add_up(blocks: Sequence[Any], stream: int, kept: Sequence[Any] = (None, None)) -> None:
            for block, feedback in zip(blocks, kept):
                if self.sums is not None and block.size:
                    self.sums.add_up(block.address, block.size, block.dtype.name, stream, feedback)
                elif block.size:
                    (array,) = BlockArrays([block], [(block.size,)], stream, self._driver, self.ordinal)
                    values = np.asarray(array)
                    self._worker.all_reduce(values, dest=values)
                    array[...] = values

        def averaged(values: Sequence[Any]) -> list[Any]:
            *arrays, given = map(jnp.asarray, values)
            own = given.astype(np.float32)
            if is_computed:  # What is wrong counts as 0 until the script's next call raises.
                (own,) = call_on_stream(self._handler("weights", self._note_weights), [own], after=arrays[:1])
                own = jnp.where(_weighs(own), own, 0)
            compressed = None
            if self.sums is not None and self.sums.compresses:
                kept = [ErrorFeedback(), ErrorFeedback()]
                compressed = self._handler((key, "compressed"), functools.partial(add_up, kept=kept))
            call = self._handler(key, queue)
            found = sum_over_workers(list(map(_real, arrays)), own, (rank, size), call, compressed)
            return list(map(_like, arrays, found))

        return self._run(("average", key), averaged, [*leaves, weight])

    def change(self, key: Any, leaves: Sequence[Any], call: Callable[[BlockArrays], None]) -> list[Any]:
        """Return arrays as changed by ``call(arrays)``, which gets complex arrays as pairs of floats."""
        shapes: list[tuple[int, ...]] = []
        likes: dict[Any, object] = {}  # Under vmap, or with other dtypes, blocks differ.

        def queue(blocks: Sequence[Any], stream: int) -> None:
            like = likes.setdefault(tuple((block.size, block.dtype) for block in blocks), object())
            call(BlockArrays(blocks, shapes, stream, self._driver, self.ordinal, like))

        def changed(values: Sequence[Any]) -> list[Any]:
            arrays = list(map(jnp.asarray, values))
            reals = list(map(_narrow, map(_real, arrays)))
            shapes[:] = [real.shape for real in reals]
            return list(map(_like, arrays, call_on_stream(self._handler(key, queue), reals)))

        return self._run(("change", key), changed, leaves)

    def _run(self, kind: Any, program: Callable[[Sequence[Any]], list[Any]], values: Sequence[Any]) -> list[Any]:
        if is_traced(values):
            return program(values)
        if kind not in self._programs:
            self._programs[kind] = jax.jit(lambda values: _marked(program(values)))
        found, self.latest = self._programs[kind](values)
        return list(found)

    def _handler(self, key: Any, call: Callable[..., None]) -> Any:
        """Return the handler by which programs call a function, one for each key; it is never freed."""
        if key not in self._handlers:
            self._handlers[key] = self._guarded(call)
            _kept.append(self._handlers[key])
        return self._handlers[key]

    def _note_weights(self, blocks: Sequence[Any], stream: int) -> None:
        """Queue the copies of weights to the host, where `failure` looks at them."""
        if self._weights is None:
            memory = (ctypes.c_float * _WEIGHTS).from_address(self._driver.allocate_on_host(4 * _WEIGHTS))
            self._weights = array_on(memory, (_WEIGHTS,), np.float32)
            self._weights[:] = 1
        count = min(blocks[0].size, _WEIGHTS)
        start = self._next_weight if self._next_weight + count <= _WEIGHTS else 0
        self._next_weight = start + count
        self._driver.queue_read(self._weights[start:].ctypes.data, blocks[0].address, 4 * count, stream)

    def _sample(self, block: Any, behind: int, stream: int) -> Array:
        """Return the first elements of a block, of which the last ``behind`` are left out."""
        few = block._replace(size=min(block.size - behind, _SAMPLE))
        return np.asarray(BlockArrays([few], [(few.size,)], stream, self._driver, self.ordinal)[0])


# Compiled programs know these handlers by number only, so they must stay alive.
_kept: list[Any] = []


def _weighs(weights: Any) -> Any:
    return (weights >= 0) & (weights < np.inf)


def _marked(arrays: list[Any]) -> tuple[list[Any], Any]:
    return arrays, [jnp.ravel(array)[:1] for array in arrays[:1]]


def _real(array: Any) -> Any:
    return jnp.stack([array.real, array.imag], -1).ravel() if array.dtype.kind == "c" else array


def _narrow(array: Any) -> Any:
    """Return values in a dtype of NumPy, without loss."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _like(array: Any, found: Any) -> Any:
    if array.dtype.kind == "c":
        pairs = found.reshape(*array.shape, 2)
        return jax.lax.complex(pairs[..., 0], pairs[..., 1])
    return found.astype(array.dtype)


class Lent:
    """Parameters whose memory differs at each use; see `platoon_base.parameters.Group`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.parameters = [_LentParameter(name, i, self) for i, name in enumerate(names)]
        self.arrays: Any = None

    @contextmanager
    def lend(self, arrays: Borrowed) -> Iterator[None]:
        """Lend the first of these arrays within the ``with`` block."""
        self.arrays = arrays[: len(self.parameters)]
        try:
            yield
        finally:
            self.arrays = None

    def borrow(self, parameters: Sequence[Any]) -> None:
        return None

    def give_back(self, parameters: Sequence[Any], arrays: Sequence[Any]) -> bool:
        return arrays is self.arrays

    def borrow_on_device(self, parameters: Sequence[Any]) -> Any:
        return self.arrays

    def share_on_device(self, parameters: Sequence[Any]) -> None:
        pass


class _LentParameter:
    def __init__(self, name: str, index: int, group: Lent) -> None:
        self.name, self._index, self.group = name, index, group

    def borrow(self) -> Array:
        return np.array(self.on_device(), order="C")

    def give_back(self, array: Any) -> None:
        self.on_device()[...] = array

    def memory(self) -> None:
        return None

    def on_device(self) -> Any:
        if self.group.arrays is None:
            raise ConfigurationError(
                f"got a call for the values of {self.name} outside of a step: a loop of JAX has them only "
                "within a step; use common(params)"
            )
        return self.group.arrays[self._index]


class Copies(JaxArrays):
    """Copies of host arrays on the device; only the first ``count`` are copied, and changed."""

    def __init__(self, arrays: Sequence[Array], count: int) -> None:
        place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        values = [
            jnp.array(array, copy=True, device=place)
            if i < count
            else jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)
            for i, array in enumerate(arrays)
        ]
        super().__init__(values, False, None)
        self._count = count

    def change_some(self, indices: Sequence[int], queue: Any, may_wait: bool) -> Any:
        return super().change_some(indices, queue, may_wait) if indices[0] < self._count else None
