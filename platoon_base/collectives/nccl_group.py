"""A process group on CUDA devices by NCCL: memory is given by address, with any framework's stream.

NCCL waits forever for a dead rank, so a thread and a guard in C watch the other ranks.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from platoon_base.collectives.base import Collective, canonical_op, canonical_root, require_timeout, result_shape
from platoon_base.collectives.device_faults import HAVE_GUARD, DeviceGuard, DeviceWatch
from platoon_base.devices.cuda import Driver, primary_driver
from platoon_base.devices.nccl import OP_CODES, Communicator, Transfer
from platoon_base.dtypes import NCCL_CODES
from platoon_base.errors import CollectiveTimeoutError, PlatoonError, WorkerLostError
from platoon_base.shm.liveness import Liveness, sign
from platoon_base.system.process import awake
from platoon_base.timeouts import POLL_S

if TYPE_CHECKING:
    from platoon_base.collectives.nccl_compressed import NcclCompression
    from platoon_base.compression.codecs import ErrorFeedback

# Kinds of call in their signatures, in addition to the codes of operations, or the root.
_MARKS = {"all_reduce": 0, "reduce_scatter": 8, "all_gather": 16, "broadcast": 32}
_BY_ADDRESS, _COMPRESSED = 64, 1 << 16


class NcclGroup:
    """One rank of a group; calls are queued on the given stream and return immediately.

    ``ordinal`` is the number of the device in the CUDA driver, ``ranks`` are those of the job, and
    ``rank`` and ``index`` are this worker's index among them. ``call_counter`` is the word of the
    job's state with this worker's latest call. Either all ranks have a ``compression`` or none.
    """

    def __init__(
        self,
        ordinal: int,
        unique_id: bytes,
        ranks: tuple[int, ...],
        index: int,
        liveness: Liveness,
        call_counter: Any,
        timeout_s: float,
        compression: NcclCompression | None = None,
    ) -> None:
        self.rank, self.size = index, len(ranks)
        self.compresses = compression is not None
        self._compression = compression
        self._driver = primary_driver(ordinal)
        others = [rank for rank in ranks if rank != ranks[index]]
        self._comm = _Joining(self._driver, unique_id, self.size, index, compression).wait(others, liveness, timeout_s)
        guard, abort = None, self._comm.abort
        if HAVE_GUARD:
            guard = DeviceGuard(others, liveness, call_counter, *self._comm.abort_call)
            abort = guard.end
        self._watch = DeviceWatch(others, liveness, call_counter, abort, guard)
        self._watch.start()

    def call(
        self,
        kind: str,
        source: int,
        target: int,
        count: int,
        dtype: str,
        op: str,
        root: int,
        stream: int,
        timeout_s: float,
        feedback: ErrorFeedback | None = None,
    ) -> None:
        """Make a call of `CALLS` on ``count`` elements; names are keys of `NCCL_CODES` and `OP_CODES`.

        They are the elements of each rank, in a reduce-scatter those that each rank gets.
        """
        code, how = NCCL_CODES[dtype], OP_CODES[op]
        if feedback is not None and self._compression is not None and self._compression.takes(count, dtype, op):
            self.require_sound()
            call = self._compression.prepare(source, target, count, op, stream, feedback)
            self._make(_COMPRESSED + how, code, count, timeout_s, self._compression.queue, self._comm, call)
            return
        parameters = [root] if kind == "broadcast" else [] if kind == "all_gather" else [how]
        given = kind, source, target, count, code, parameters, stream
        self._make(_MARKS[kind] + sum(parameters), code, count, timeout_s, self._comm.call, *given)

    def require_sound(self) -> None:
        self._watch.require_sound()

    def close(self) -> None:
        """Wait for the queued calls, unless the group is broken, and drop the communicator."""
        if self._watch.stopped:
            return
        try:
            if self._watch.broken is None:
                self._driver.finish()
        finally:
            # Destroying the communicator would wait for the others, so its memory is kept until the
            # process ends.
            self._watch.stop()

    def _make(self, kind: int, dtype: int, count: int, timeout_s: float, call: Callable[..., None], *args: Any) -> None:
        """Make a call; if NCCL fails because another rank is absent, raise that reason."""
        require_timeout(timeout_s)
        self._watch.begin(sign(_BY_ADDRESS + kind, dtype, count), timeout_s)
        try:
            with self._driver.entered():
                call(*args)
        except PlatoonError:
            self._watch.wait_for_fault()
            raise


class NcclCollective(Collective):
    """One rank of a group of CUDA devices; calls are queued on the stream of a framework.

    A derived class checks the arrays of its framework, says where they are, and divides them.
    """

    stays_on_device = True  # See `Advanced.stays_on_device`.

    def __init__(self, group: NcclGroup) -> None:
        self.rank, self.size, self.compresses = group.rank, group.size, group.compresses
        self._group = group

    def call(self, kind: str, array: Any, op: str, root: Any, out: Any, timeout_s: float, feedback: Any = None) -> Any:
        name, root = canonical_op(op), canonical_root(root, self.size)
        shape = result_shape(kind, tuple(array.shape), self.size)
        array, out, dtype = self.prepared(array, out, shape)
        count = math.prod(shape if kind == "reduce_scatter" else array.shape)
        if not count:
            return out
        divides = name == "mean" and self.divides(dtype)
        asked = "sum" if divides else name
        with self.memory(array, out) as (source, target, stream):
            self._group.call(kind, source, target, count, dtype, asked, root, stream, timeout_s, feedback)
        if divides:
            self.divide(out)
        return out

    def prepared(self, array: Any, out: Any, shape: tuple[int, ...]) -> tuple[Any, Any, str]:
        """Return contiguous arrays, ``out`` a new one by default, and the name of their dtype."""
        raise NotImplementedError

    def memory(self, array: Any, out: Any) -> contextlib.AbstractContextManager[tuple[int, int, int]]:
        """Yield the addresses of both arrays, and a stream in order with other work on them."""
        raise NotImplementedError

    def divides(self, dtype: str) -> bool:
        """Return whether a mean is NCCL's sum, which `divide` divides by the ranks, integers toward zero."""
        raise NotImplementedError

    def divide(self, out: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Wait for queued calls, unless the group is broken, and release the communicator."""
        self._group.close()


class _Joining:
    """Forms a group in a thread: nothing can end NCCL's wait for a rank that dies meanwhile."""

    def __init__(
        self, driver: Driver, unique_id: bytes, size: int, index: int, compression: NcclCompression | None
    ) -> None:
        self._driver = driver
        self._compression = compression
        self._arguments = unique_id, size, index
        self._comm: Communicator | None = None
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._join, name="platoon-nccl-join", daemon=True)

    def wait(self, others: Sequence[int], liveness: Liveness, timeout_s: float) -> Communicator:
        deadline = awake() + timeout_s
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(POLL_S)
            lost = [rank for rank in others if liveness.gone(rank) or liveness.died(rank)]
            if lost and self._thread.is_alive():
                raise WorkerLostError(f"cannot form a group of devices: {liveness.why_absent(lost)}")
            if awake() > deadline:
                raise CollectiveTimeoutError(
                    f"waited {timeout_s:g} s for NCCL to connect the devices: NCCL_DEBUG=INFO "
                    "shows what it tries; or pass a longer timeout_s"
                )
        if self._comm is None:
            raise self._failure or PlatoonError("cannot form a group of devices")
        return self._comm

    def _join(self) -> None:
        try:
            with self._driver.entered():
                comm = Communicator(*self._arguments)
                # The first call connects the devices and waits for the others; the caller has the
                # timeout.
                number = self._driver.allocate(4)
                stream = self._driver.new_stream()
                comm.call("all_reduce", number, number, 1, NCCL_CODES["float32"], [OP_CODES["sum"]], stream)
                peers = [] if self._compression is None else self._compression.peers
                if peers:
                    all_of_them = [Transfer(peer, number, 1) for peer in peers]
                    comm.exchange(all_of_them, all_of_them, stream)
                self._driver.finish(stream)
                self._driver.close_stream(stream)
                self._driver.free(number)
            self._comm = comm
        except Exception as exc:
            self._failure = exc
