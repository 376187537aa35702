"""The worker's end of a connection to a batch server: it reads the batches in shared memory."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.data.batch_link import Link, batch_address, connect_link, failure_of_server
from platoon_base.data.batch_memory import (
    MAX_AHEAD,
    Batch,
    Bye,
    Failed,
    Freed,
    Held,
    Hello,
    Slot,
    arrays_on,
    decode_from_server,
    encode,
    unflatten,
)
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, ProtocolError, WorkerLostError
from platoon_base.job.joining import connected
from platoon_base.shm.phases import LOADING
from platoon_base.system.environment import RANK
from platoon_base.system.process import awake
from platoon_base.timeouts import DEFAULT_TIMEOUT_S

AHEAD = 4  # One to train on, one that was just dropped, two to come.
_RETRY_S = 0.02
_MAX_WAIT_S = 1.0  # The timeout of one poll; see `awake`.


class BatchReader:
    """Reads the mini-batches that a `BatchServer` sends to this worker.

    ::

        for epoch in range(epochs):
            for x, y in reader:  # until the server ends the epoch, or the data
                train(x, y)

    The arrays are views on shared memory. A batch is returned to the server once the script has
    dropped its arrays, and all views on them. A script that keeps ``ahead - 1`` batches gets copies
    instead of views. Batches for all workers are read-only.

    Parameters
    ----------
    address, name
        See `BatchServer`.
    ahead : int
        How many batches this worker may hold: those that it keeps, and those that are ready (a
        high-water mark).
    copy : bool
        Return private arrays instead of views.
    rank : int, optional
        The default is the worker's rank in the job, or 0.
    timeout_s : float
        Bound on the wait for the server, which may start later, and on that for each batch.

    Attributes
    ----------
    count : int
        Number of batches received.
    ended : bool
        Whether the server has ended the data.

    Raises
    ------
    CollectiveTimeoutError
        If there is no server within ``timeout_s``.
    ConfigurationError
        If there is no job and no address, or ``ahead`` is out of range.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        name: str = "batches",
        ahead: int = AHEAD,
        copy: bool = False,
        rank: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._server = "the batch server"
        rank = int(os.environ.get(RANK, "0")) if rank is None else rank
        self._begin(_connect(batch_address(address, name), timeout_s), rank, ahead, copy, timeout_s)

    @classmethod
    def over(cls, link: Link, *, ahead: int, copy: bool, timeout_s: float, server: str, rank: int = 0) -> BatchReader:
        """Return a reader on a connection; errors call the process at the other end ``server``."""
        reader = cls.__new__(cls)
        reader._server = server
        reader._begin(link, rank, ahead, copy, timeout_s)
        return reader

    def _begin(self, link: Link, rank: int, ahead: int, copy: bool, timeout_s: float) -> None:
        if isinstance(ahead, bool) or not isinstance(ahead, (int, np.integer)) or not 1 <= ahead <= MAX_AHEAD:
            link.close()
            raise ConfigurationError(f"got ahead={ahead!r}: a worker may have 1 to {MAX_AHEAD} batches")
        self.count = 0
        self.ended = False
        self._link: Link | None = link
        self._ahead, self._copy, self._timeout_s = int(ahead), copy, timeout_s
        self._slots: dict[int, Slot] = {}
        self._held: set[int] = set()
        self._unsent: deque[int] = deque()
        self._pid = os.getpid()
        self._poll = select.poll()
        for fd in (link.fileno(), link.pidfd):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)
        # If the server has ended, the first wait raises.
        link.send(encode(Hello(rank, int(ahead))))

    def receive(self, *, into: Sequence[Any] | None = None, timeout_s: float | None = None) -> Any:
        """Return the next batch, as it was sent; None at the end of an epoch or the data.

        ``into`` are arrays of the batch's shapes and dtypes to copy it to; then they are returned,
        as a list.

        Raises
        ------
        CollectiveTimeoutError
            If the server is alive but sends nothing.
        WorkerLostError
            If the server has ended or failed; the message has its error.
        ProtocolError
            If an invalid message arrives.
        """
        if self.ended:
            return None
        worker = connected()
        with contextlib.nullcontext() if worker is None else worker.advanced.clock.phase(LOADING):
            return self._receive(into, self._timeout_s if timeout_s is None else timeout_s)

    def _receive(self, into: Sequence[Any] | None, timeout_s: float) -> Any:
        link = self._require_link()
        message, fd = self._next(link, timeout_s)
        if isinstance(message, Batch):
            return self._open(message, fd, into)
        if isinstance(message, Failed):
            self.close()
            raise WorkerLostError(f"{self._server} (pid {link.pid}) has stopped sending batches: {message.why}")
        if message.last:
            self.ended = True
            self.close()
        return None

    def __iter__(self) -> BatchReader:
        return self

    def __next__(self) -> Any:
        batch = self.receive()
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """Disconnect; the server gets unused batches back, arrays in the script stay valid."""
        link, self._link = self._link, None
        if link is None:
            return
        if os.getpid() == self._pid:
            link.send(encode(Bye()))
        link.close()
        while self._slots:
            self._slots.popitem()[1].close()

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_link", None) is not None:
            self.close()

    # What arrives.

    def _next(self, link: Link, timeout_s: float) -> tuple[Any, int]:
        deadline = awake() + timeout_s
        dead = False
        while True:
            self._send_unsent(link)
            try:
                frame, fd = link.receive()
            except BlockingIOError:
                frame, fd = b"", -1
                if not dead:
                    dead = self._wait(link, deadline, timeout_s)
                    continue
            except OSError:
                frame, fd = b"", -1
            if not frame:
                self.close()
                raise WorkerLostError(
                    f"{self._server} (pid {link.pid}) ended before the end of the data: read its "
                    "output, and start the job again"
                )
            return self._decode(frame, fd)

    def _decode(self, frame: bytes, fd: int) -> tuple[Any, int]:
        try:
            message = decode_from_server(frame)
            if (fd >= 0) != (isinstance(message, Batch) and message.new):
                raise ProtocolError("got a message about batches without its memory, or one message too many; refused")
        except ProtocolError:
            if fd >= 0:
                os.close(fd)
            self.close()
            raise
        return message, fd

    def _wait(self, link: Link, deadline: float, timeout_s: float) -> bool:
        """Sleep until a message arrives or the server dies; return whether it has died."""
        wait_s = max(0.0, deadline - awake())
        ready = dict(self._poll.poll(1e3 * min(wait_s, _MAX_WAIT_S)))
        if not ready and awake() < deadline:
            return False
        if not ready:
            raise CollectiveTimeoutError(
                f"{self._server} (pid {link.pid}) is alive but has sent nothing for {timeout_s:g} "
                "s: it is slow or stopped, or all batches go to other workers. Read its output, "
                "or pass a longer timeout_s"
            )
        return link.fileno() not in ready

    def _open(self, message: Batch, fd: int, into: Sequence[Any] | None) -> Any:
        if message.new:
            self._replace(message, fd)
        slot = self._slots.get(message.slot)
        if slot is None or slot.size_bytes != message.slot_bytes:
            self.close()
            raise ProtocolError(f"got a batch in slot {message.slot}, whose memory was never sent; refused")
        self.count += 1
        keep = self._copy or into is not None or len(self._held) >= self._ahead - 1
        self._held.add(message.slot)
        held = Held(slot.memory, not message.shared, functools.partial(self._release, message.slot))
        arrays = arrays_on(np.asarray(held), message.parts)
        if into is not None:
            return _copy_to(into, arrays)
        if keep:
            arrays = [array.copy() for array in arrays]
        return unflatten(message.form, message.names, arrays)

    def _replace(self, message: Batch, fd: int) -> None:
        if message.slot in self._slots:
            self._slots.pop(message.slot).close()
        try:
            self._slots[message.slot] = Slot.attach(fd, message.slot_bytes)
        except ProtocolError:
            self.close()
            raise

    def _release(self, index: int) -> None:
        """Release a slot; the thread that drops the last array calls it, at any time."""
        if os.getpid() != self._pid:
            return  # The parent of a forked child owns the slot.
        self._held.discard(index)
        self._unsent.append(index)
        link = self._link
        if link is not None:
            self._send_unsent(link)

    def _send_unsent(self, link: Link) -> None:
        while self._unsent:
            try:
                index = self._unsent.popleft()
            except IndexError:
                return  # Another thread was faster.
            try:
                link.send(encode(Freed(index, self.count)))
            except BlockingIOError:
                self._unsent.append(index)
                return
            except OSError:
                return  # The link was closed meanwhile.

    def _require_link(self) -> Link:
        if os.getpid() != self._pid:
            raise ConfigurationError("this is a forked copy of a batch reader: read in the process that opened it")
        if self._link is None:
            raise ConfigurationError("this batch reader is closed: open another one")
        return self._link


def _copy_to(targets: Sequence[Any], arrays: list[Any]) -> list[Any]:
    fitting = len(targets) == len(arrays) and all(
        target.shape == array.shape and target.dtype == array.dtype for target, array in zip(targets, arrays)
    )
    if not fitting:
        raise ConfigurationError(
            f"got buffers of {_shapes(targets)} for a batch of {_shapes(arrays)}: pass one array "
            "of the same shape and dtype for each of its arrays"
        )
    for target, array in zip(targets, arrays):
        np.copyto(target, array)
    return list(targets)


def _shapes(arrays: Sequence[Any]) -> str:
    return ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)


def _connect(address: str, timeout_s: float) -> Link:
    deadline = awake() + timeout_s
    while (link := connect_link(address)) is None:
        if why := failure_of_server(address):
            raise WorkerLostError(f"no batch server listens at {address}: the data server {why}")
        if awake() > deadline:
            raise CollectiveTimeoutError(
                f"found no batch server at {address} within {timeout_s:g} s: start one "
                "(BatchServer in the controller, or platoon launch --data-server), or pass the "
                "same name or address to server and readers"
            )
        time.sleep(_RETRY_S)
    return link
