"""Center in the memory of the job's CUDA devices.

Each device owns a partition, which the others open through CUDA IPC. A synchronization is one
kernel over all tiles on all devices; no data passes through the host and no call waits. A segment
of shared memory, the directory, records the owner of each partition and a mirror of the values and
center states, copied every few seconds.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.base import Named, NonFiniteElement
from platoon_base.centers.device_directory import NO_OWNER, DeviceDirectory, Entry, split_element_code, tile_table
from platoon_base.centers.device_source import kernel_source, kernel_types, operations
from platoon_base.device_arrays import Flush, Order, Queue
from platoon_base.devices.cuda import DeviceMemory, Driver, HostMemory
from platoon_base.devices.runtime import Argument, DeviceBuffer, DeviceRuntime, Kernel
from platoon_base.dtypes import C_TYPES
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.layout import Layout
from platoon_base.parameters import Borrowed
from platoon_base.rules.center import Rule, average_of, form_of, local_sources, rule_of_moments
from platoon_base.shm.segments import Name
from platoon_base.timeouts import LIVENESS_S, timeout

DeviceArray = Any  # A pygpu GpuArray or a CudaArray, depending on the runtime.

# A tile's lock, normally held for microseconds, is broken after this time.
LOCK_NS = 500_000_000
_THREADS, _BLOCKS_EACH = 256, 8
_NOTHING_REFUSED = np.array([np.iinfo(np.uint64).max], np.uint64)


class DeviceCenter:
    """A worker's handle of the center, see `Center`; arrays are on the device of the runtime."""

    on_device = True
    whole = True

    def __init__(
        self,
        directory: DeviceDirectory,
        runtime: DeviceRuntime,
        layout: Layout,
        rule: Rule,
        rank: int,
        gone: Callable[[int], bool],
        incarnation: Callable[[int], int],
    ) -> None:
        self._directory = directory
        self.orders = directory.orders
        self._runtime = runtime
        self._layout = layout
        self._rank = rank
        self._tiling = directory.tiling
        self._driver = runtime.driver
        self._memory = HostMemory(self._driver, directory.address, directory.size_bytes)
        self._partitions = Partitions(directory, self._driver, rank, gone, incarnation, self.finish)
        self._form: Any = form_of(rule)
        self._operations = operations(rule)
        self._average = average_of(rule)
        of_moments = rule_of_moments(rule)
        self._trained = len(layout) if of_moments is rule else layout.num_trained
        self._operations_of_moments = operations(of_moments)
        self._kernels: dict[tuple[str, Any, int, bool], Kernel] = {}
        self._sources = local_sources(rule)
        states_bytes = self._tiling.state_bytes * len(self._sources)
        self._states = runtime.zeros(max(states_bytes, 1), "uint8")
        self._refused = runtime.buffer(_NOTHING_REFUSED)
        self._launches: list[_Launch] = []
        self._queued = False  # Kernels may be running.
        # Launches deferred to the next use of their arrays.
        self._put_off: list[tuple[_Work, Flush]] = []
        self._planned = 0  # Version of the partitions in the planned launches.
        self._next_mirror = 0.0
        # Number of the latest mirror, and the partitions being copied.
        self._mirror: tuple[int, list[int]] = 0, []

    def has_made_all(self) -> bool:
        return all(work.is_queued for work, _ in self._put_off)

    def sync(self, rule: Rule, arrays: Borrowed, locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Apply the rule once, at the next use of ``arrays`` where the runtime supports that."""
        self._launch_all()
        self._put_off = []  # Launches that did not run are dropped.
        self._partitions.open_all(timeout_s)
        refused = self.take_refused()
        of_moments = self._call(rule_of_moments(rule), locked, moments=True)
        self._launch(self._call(rule, locked), arrays, of_moments, may_wait=True)
        self._publish_mirror_numbers()
        if time.monotonic() >= self._next_mirror or self._directory.wanted != self._mirror[0]:
            self.mirror()
        return refused

    def _call(self, rule: Rule, locked: bool, moments: bool = False) -> _Call:
        atomic = f"{rule.kernel}_atomic"
        known = self._operations_of_moments if moments else self._operations
        return _Call(atomic if not locked and atomic in known else str(rule.kernel), rule.kernel_args())

    def read(
        self,
        out: Borrowed,
        locked: bool,
        timeout_s: float,
        begin: bool = False,
        averaged: bool = False,
    ) -> None:
        """Copy the center into ``out``; ``begin`` also resets this worker's states, at the same moment."""
        self._launch_all()
        average = self._average if averaged else None
        if self._directory.complete:
            self._partitions.open_all(timeout_s)
            kernel = "take_over" if begin else "pull"
            self._launch(_Call(kernel if average is None else f"{kernel}_average"), out, _Call(kernel))
            return
        self._directory.read_buffer(0, out)  # The mirror is valid: no worker has synchronized yet.
        if average is not None:
            self._directory.read_buffer(1 + average, out[: self._trained])
        if begin:
            self._start_from_mirror(0 if average is None else 1 + average)

    def write(self, values: Borrowed, locked: bool, timeout_s: float) -> None:
        """Overwrite the center and reset this worker's states at the same moment."""
        self._launch_all()
        self._partitions.open_all(timeout_s)
        self._launch(_Call("overwrite"), values)

    def fill(self, values: Sequence[DeviceArray], states: Sequence[Sequence[np.ndarray[Any, Any]]]) -> None:
        """Write the initial values to the mirror, from which partitions are made."""
        if self._average is not None:
            self._directory.write_buffer(1 + self._average, values)
        for buffer, arrays in enumerate([values, *states]):
            self._directory.write_buffer(buffer, arrays)
        self.make_partition()
        self._start_from_mirror()

    def _start_from_mirror(self, values: int = 0) -> None:
        """Reset this worker's states from the mirror, which is valid until the first synchronization."""
        if self._sources:
            buffers = [values if source is None else 1 + source for source in self._sources]
            self._states.write(np.concatenate([self._directory.buffer_as_state(buffer) for buffer in buffers]))

    def make_partition(self) -> None:
        """Make this worker's partition, if any, from the mirror, unless another worker owns it."""
        if self._rank < self._directory.workers:
            self._partitions.adopt(self._rank, 0)

    def mirror(self) -> None:
        """Start an asynchronous copy of this worker's partitions to the host's memory."""
        if self._memory.copying:
            return
        self._next_mirror = time.monotonic() + timeout("mirror")
        self._mirror = self._directory.wanted, list(self._partitions.own)
        for partition in self._partitions.own:
            start, size = self._directory.mirror_of(partition)
            source = self._partitions.addresses[partition] + self._tiling.values_start[partition]
            self._memory.start_copy(source, start, size)

    def _publish_mirror_numbers(self) -> None:
        """Publish the mirror numbers of the partitions whose copies are complete."""
        number, partitions = self._mirror
        if partitions and not self._memory.copying:
            for partition in partitions:
                self._directory.mirrored(partition, number)
            self._mirror = number, []

    def finish(self) -> None:
        self._launch_all()
        if self._queued:
            self._refused.read()  # Each kernel uses this buffer.
            self._queued = False

    def settle(self) -> None:
        """Mirror this worker's partitions, and those of dead owners, for the last time."""
        self._partitions.adopt_orphans()
        self._memory.finish_copies()
        self.mirror()
        self._memory.finish_copies()
        for partition in self._partitions.own:
            self._directory.mirrored(partition)
        self._next_mirror = 0.0  # The next synchronization mirrors immediately.

    def close(self, over: bool = False) -> None:
        if self._directory.closed:
            return
        self._put_off = []  # Deferred launches are dropped.
        self._launches = []
        with contextlib.ExitStack() as always:  # Callbacks run in reverse order.
            always.callback(self._directory.close)
            always.callback(self._partitions.close, over)
            always.callback(self._memory.close)
            self.finish()
            self.settle()

    # The kernels.

    def _launch_all(self) -> None:
        """Launch the deferred kernels, before any later work."""
        for _, flush in self._put_off:
            flush()
        self._put_off = [(work, flush) for work, flush in self._put_off if not work.is_queued]

    def _launch(
        self,
        call: _Call,
        arrays: Borrowed,
        of_moments: _Call | None = None,
        may_wait: bool = False,
    ) -> None:
        """Launch ``call`` for the parameters, and ``of_moments`` or ``call`` for the moments."""
        if not self._launches or self._planned != self._partitions.version:
            self._launches, self._planned = self._plan(), self._partitions.version
        for launch in self._launches:
            taken = arrays[launch.parameters]
            made = of_moments if launch.moments and of_moments is not None else call
            compiled = self._kernel(made.kernel, launch)
            work = _Work(functools.partial(self._queue, compiled, launch, taken, made.scalars))
            flush = self._runtime.change(taken, work, may_wait)
            if flush is not None:
                self._put_off.append((work, flush))

    def _queue(
        self,
        kernel: Kernel,
        launch: _Launch,
        taken: Sequence[DeviceArray],
        scalars: Sequence[float],
        bases: list[int],
        stream: int,
    ) -> None:
        """Queue one launch, on arrays whose memory starts at ``bases``."""
        if self._directory.closed:  # Closed while the launch was deferred.
            return
        self._queued = True
        if bases != launch.bases:
            launch.bases = []
            launch.table.write(np.asarray(bases, dtype="uint64"), stream)
            launch.bases = bases
        arguments: list[Argument] = [
            launch.tiles,
            launch.table,
            launch.count,
            launch.first,
            self._rank + 1,
            self._refused,
            self._memory.device_address + self._directory.flag_offset(self._rank),
            *scalars,
        ]
        blocks = min(launch.count, self._runtime.multiprocessors * _BLOCKS_EACH)
        kernel.launch(arguments, taken, stream, blocks, _THREADS)

    def _kernel(self, name: str, launch: _Launch) -> Kernel:
        key = name, launch.dtype, len(launch.parameters), launch.moments
        if key not in self._kernels:
            operation = (self._operations_of_moments if launch.moments else self._operations)[name]
            source = functools.partial(kernel_source, name, self._form, operation, launch.dtype, lock_ns=LOCK_NS)
            types = kernel_types(operation, launch.dtype)
            self._kernels[key] = self._runtime.compile(name, source, types, len(launch.parameters))
        return self._kernels[key]

    def _plan(self) -> list[_Launch]:
        """Group the parameters by dtype into launches with the current addresses of their tiles."""
        specs, most = self._layout.specs, self._runtime.most_parameters
        by_dtype: dict[tuple[str, bool], list[int]] = {}
        for index, spec in enumerate(specs):
            if spec.size:
                by_dtype.setdefault((spec.dtype, index >= self._trained), []).append(index)
        chunks = [
            (dtype, moments, parameters[i : i + most])
            for (dtype, moments), parameters in by_dtype.items()
            for i in range(0, len(parameters), most)
        ]
        return [self._plan_one(np.dtype(dtype), moments, parameters) for dtype, moments, parameters in chunks]

    def _plan_one(self, dtype: Any, moments: bool, parameters: list[int]) -> _Launch:
        states_at = [self._states.address + self._tiling.state_bytes * i for i in range(len(self._sources))]
        rows = tile_table(self._tiling, parameters, self._partitions.addresses, states_at)
        first = len(rows) * (self._rank % max(self._directory.workers, 1)) // max(self._directory.workers, 1)
        table = self._runtime.zeros(len(parameters), "uint64")
        return _Launch(parameters, dtype, moments, self._runtime.buffer(rows), len(rows), first, table)

    def take_refused(self) -> NonFiniteElement | None:
        """Return the first element refused since the last call, if the device has reported one."""
        if not self._directory.flag(self._rank):
            return None
        word = int(self._refused.read()[0])
        self._directory.clear_flag(self._rank)
        self._refused.write(_NOTHING_REFUSED)
        if word == _NOTHING_REFUSED:
            return None
        parameter, place = split_element_code(word)
        order, shape = self.orders[parameter], self._layout.specs[parameter].shape
        if order == tuple(range(len(shape))):
            return NonFiniteElement(parameter, place)
        index = np.unravel_index(place, [shape[axis] for axis in order])
        return NonFiniteElement(parameter, int(np.ravel_multi_index([index[i] for i in np.argsort(order)], shape)))


class _Work:
    """Launch for `DeviceRuntime.change`, which may defer it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.is_queued = False

    def __call__(self, addresses: list[int], stream: int) -> None:
        self._queue(addresses, stream)
        self.is_queued = True


class _Call(NamedTuple):
    """Name and scalars of a kernel."""

    kernel: str
    scalars: Sequence[float] = ()


class _Launch:
    """Arguments of the kernels for one group of parameters, reused by each launch."""

    def __init__(
        self,
        parameters: list[int],
        dtype: Any,
        moments: bool,
        tiles: DeviceBuffer,
        count: int,
        first: int,
        table: DeviceBuffer,
    ) -> None:
        self.parameters = parameters
        self.dtype = dtype
        self.moments = moments
        self.tiles = tiles
        self.count = count
        self.first = first
        self.table = table
        self.bases: list[int] = []


class DeviceCenters(Named):
    """Opens the center of a job under its name; each of the first ``workers`` makes a partition.

    A center that is created has each parameter in the memory order given by ``orders``.
    """

    location = "device"

    def __init__(
        self,
        name: Name,
        workers: int,
        runtime: DeviceRuntime,
        orders: Sequence[Order],
        gone: Callable[[int], bool],
        incarnation: Callable[[int], int],
    ) -> None:
        super().__init__(name, workers, gone)
        self._orders = orders
        self._runtime = runtime
        self._incarnation = incarnation

    @staticmethod
    def takes(layout: Layout, rule: Rule) -> bool:
        """Return whether there are kernels for a rule on these parameters."""
        return form_of(rule) is not None and {spec.dtype for spec in layout.specs} <= set(C_TYPES)

    def create(self, layout: Layout, rule: Rule, rank: int) -> DeviceCenter:
        """Create the segment; replace one left by a dead creator."""
        states = len(rule.center_state)
        directory = DeviceDirectory.create(self.name, layout, self._workers, states, self._orders)
        return DeviceCenter(directory, self._runtime, layout, rule, rank, self._gone, self._incarnation)

    def attach(self, layout: Layout, rule: Rule, rank: int) -> DeviceCenter:
        """Open the segment and make this worker's partition; may raise `LayoutMismatchError`."""
        directory = DeviceDirectory.attach(self.name, layout, center_states=len(rule.center_state))
        center = DeviceCenter(directory, self._runtime, layout, rule, rank, self._gone, self._incarnation)
        center.make_partition()
        return center


_PATIENCE_S = 20.0  # After this time any worker makes a missing partition.
_PAUSE_S = 0.002


def _nothing() -> None:
    """Do nothing."""


class Partitions:
    """Opens the partitions of other workers; makes missing ones and those of dead owners."""

    def __init__(
        self,
        directory: DeviceDirectory,
        driver: Driver,
        rank: int,
        gone: Callable[[int], bool],
        incarnation: Callable[[int], int],
        finish: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._driver = driver
        self._rank = rank
        self._gone = gone
        self._incarnation = incarnation
        self._finish = finish
        self._tiling = directory.tiling
        self._open: dict[int, tuple[int, DeviceMemory]] = {}  # By partition: generation and memory.
        self._own: set[int] = set()
        self._seen = -1  # Version of the directory.
        self._next_poll_at = 0.0
        self.version = 0  # Grows whenever the address of a partition changes.

    @property
    def own(self) -> set[int]:
        """Partitions in this worker's memory."""
        return self._own

    @property
    def addresses(self) -> Mapping[int, int]:
        return {partition: memory.address for partition, (_, memory) in self._open.items()}

    def open_all(self, timeout_s: float) -> None:
        """Open all partitions; raise `CollectiveTimeoutError` if one is not made in time."""
        now = time.monotonic()
        if self._seen == self._directory.version and now < self._next_poll_at:
            return
        self._next_poll_at = now + LIVENESS_S
        deadline, patience = now + timeout_s, now + _PATIENCE_S
        while True:
            self._seen = self._directory.version
            missing = [p for p in range(len(self._tiling.partition_bytes)) if not self._have(p, patience)]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"waited {timeout_s:g} s for the parts of the center that ranks {missing} "
                    "create: do they share parameters too? Read their logs, or pass a longer "
                    "timeout_s"
                )
            time.sleep(_PAUSE_S)

    def _have(self, partition: int, patience: float) -> bool:
        entry = self._directory.entry(partition)
        known = self._open.get(partition)
        if entry.generation and self._owned(partition, entry):
            if known is None or known[0] != entry.generation:
                self._open_one(partition, entry.generation, entry.handle)
            return True
        never_made = not entry.generation
        if never_made and not self._gone(partition) and time.monotonic() < patience:
            return False
        return self.adopt(partition, entry.generation)

    def _owned(self, partition: int, entry: Entry) -> bool:
        """Return whether the owning process lives; a restarted one does not have the memory."""
        if entry.owner == self._rank:
            return partition in self._own
        return (
            entry.owner != NO_OWNER
            and not self._gone(entry.owner)
            and self._incarnation(entry.owner) == entry.incarnation
        )

    def _open_one(self, partition: int, generation: int, handle: bytes) -> None:
        known = self._open.pop(partition, None)
        if known is not None:
            self._finish()
            self._close_borrowed(partition, known[1])
        size = self._tiling.partition_bytes[partition]
        self._open[partition] = generation, DeviceMemory.open(self._driver, handle, size)
        self.version += 1

    def _close_borrowed(self, partition: int, memory: DeviceMemory) -> None:
        """Close another process's memory; own memory stays, even if its partition was replaced."""
        if partition in self._own:
            self._own.discard(partition)
        else:
            memory.close()

    def adopt(self, partition: int, generation: int) -> bool:
        """Remake a partition; False if another worker has made it, or holds the lock."""
        try:
            if not self._directory.try_lock(partition):
                return False
            if self._directory.entry(partition).generation != generation:
                return False
            memory = DeviceMemory.allocate(self._driver, self._tiling.partition_bytes[partition])
            start = self._tiling.values_start[partition]
            known = self._open.get(partition)
            if known is not None:
                self._finish()
            # If the dead owner's memory is open here, it is newer than the mirror.
            if known is not None and known[0] == generation:
                memory.copy(known[1], start)
            else:  # The memory of an earlier owner may be outdated.
                memory.write(start, self._directory.mirror(partition))
            if known is not None:
                self._close_borrowed(partition, known[1])
            self._directory.publish(partition, self._rank, memory.handle, self._incarnation(self._rank))
            self._open[partition] = generation + 1, memory
            self._own.add(partition)
            self.version += 1
        finally:  # A Ctrl-C may arrive just after the lock is acquired.
            self._directory.unlock(partition)
        return True

    def adopt_orphans(self) -> None:
        """Remake the partitions of dead owners, which nobody else would mirror once all have left."""
        for partition in range(len(self._tiling.partition_bytes)):
            entry = self._directory.entry(partition)
            if entry.generation and not self._owned(partition, entry):
                self.adopt(partition, entry.generation)

    def close(self, over: bool) -> None:
        """Close other workers' memory; ``over`` states that no worker uses the center any more."""
        for partition, (_, memory) in self._open.items():
            if partition not in self._own:
                memory.close()
            elif over:
                memory.reuse()
        self._open = {}
        self._finish = _nothing  # This breaks a reference cycle with the center.
