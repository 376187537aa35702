"""The server of mini-batches: it distributes batches to the workers of its host in shared memory.

A batch is copied once, into a slot of shared memory. A slot is freed when a worker drops the batch,
or dies: the kernel reports a death immediately.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from platoon_base.data.batch_link import Link, batch_address, expected_readers, listen_at, remove_socket
from platoon_base.data.batch_memory import Batch, End, Plan, Slots, arrays_on, flatten, plan
from platoon_base.data.batch_readers import Dealt, Readers
from platoon_base.data.excerpt import copy_to
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.system.process import awake
from platoon_base.timeouts import DEFAULT_TIMEOUT_S, LIVENESS_S

log = logging.getLogger(__name__)


class AllLeftError(WorkerLostError):
    """All readers have left, so no reader can get a batch."""


DEALS = ("free", "turns", "all")


class BatchServer:
    """Distributes mini-batches to workers, which read them with a `BatchReader` of the same name.

    Any process of the user may serve: the controller's, one that ``platoon launch --data-server``
    starts, or one externally launched. A batch is an array, a tuple or list of arrays, or a dict of
    them; it arrives in the same form. Arrays hold numbers or strings of a fixed length.

    Leaving its ``with`` block ends the data; an exception is reported to the workers, which raise
    `WorkerLostError`.

    Parameters
    ----------
    address : str, optional
        Path of the Unix socket. The default is in the folder of the job, from the environment.
    name : str
        Identifies this server among those of the job.
    readers : int, optional
        How many workers to expect, for batches to all of them and before the data may end. The
        default is the number of launched workers of the job; 1 with an address.
    remaining : callable, optional
        Returns the set of ranks that may still read, or None while it is unknown. By default all
        have left once ``readers`` have connected and left.

    Attributes
    ----------
    address : str
    sent : int
        Number of batches sent so far; one that is sent to all workers counts once.

    Raises
    ------
    ConfigurationError
        If there is no job, or another server listens there.

    Examples
    --------
    >>> with BatchServer() as server:
    ...     for x, y in batches:
    ...         server.send((x, y))
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        name: str = "batches",
        readers: int | None = None,
        remaining: Callable[[], set[int] | None] | None = None,
    ) -> None:
        expected = expected_readers(address) if readers is None else readers
        if expected < 1:
            raise ConfigurationError(f"got readers={readers}: a server needs at least one reader")
        self.address = batch_address(address, name)
        self._open(Readers(expected, listen_at(self.address), remaining))

    @classmethod
    def over(cls, link: Link) -> BatchServer:
        """Return the server of one reader, at the other end of a connection."""
        server = cls.__new__(cls)
        server.address = ""
        readers = Readers(1, None)
        readers.add(link)
        server._open(readers)
        return server

    def _open(self, readers: Readers) -> None:
        self.sent = self._turn = 0
        self._readers = readers
        self._slots = Slots()
        self._pending: list[Dealt] = []  # Batches whose workers died before they took them.
        self._ended = self._sent_failure = self._closed = False
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @property
    def lost(self) -> int:
        """Number of batches that died with a worker, which was training on them."""
        return self._readers.lost

    @property
    def memory_bytes(self) -> int:
        """Shared memory of the batches."""
        return self._slots.size_bytes

    def send(self, batch: Any, to: int | str | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Send a mini-batch; wait while its receivers have as many batches as they want ahead.

        Parameters
        ----------
        batch : array, or tuple, list or dict of arrays
        to : int or "all", optional
            The rank of the receiver, or ``"all"``. By default it is the worker with the fewest
            batches. A batch for a worker that has left goes to another.

        Raises
        ------
        CollectiveTimeoutError
            If no worker took a batch within ``timeout_s``.
        WorkerLostError
            If all workers have left.
        """
        form, names, arrays = flatten(batch)
        layout = plan([(array.shape, array.dtype) for array in arrays])
        with self._slot(layout, form, names, to, timeout_s) as targets:
            for target, array in zip(targets, arrays):
                copy_to(target, array)

    @contextlib.contextmanager
    def in_place(
        self,
        *arrays: tuple[tuple[int, ...], Any],
        to: int | str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the arrays of a batch in shared memory to fill; send it after the ``with`` block.

        ``arrays`` are pairs of shape and dtype, as for ``numpy.empty``; ``to`` is as in `send`.

        Examples
        --------
        >>> with server.in_place(((256, 784), "float32"), ((256,), "int64")) as (x, y):
        ...     file.readinto(x)
        """
        with self._slot(plan(arrays), "tuple", [], to, timeout_s) as targets:
            yield tuple(targets)

    def serve(self, batches: Iterable[Any], deal: str = "free", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Send all batches of an iterable, then the end of an epoch; return how many were sent.

        It ends early, without an error, when all workers have left. ``deal`` is "free", to any free
        worker; "turns", the k-th batch to rank k modulo the number of workers, so that each gets
        the same batches in each run (turns continue from call to call); or "all", each batch to all
        workers.
        """
        if deal not in DEALS:
            raise ConfigurationError(f"got deal={deal!r}: it must be one of {', '.join(DEALS)}")
        before = self.sent
        try:
            for batch in batches:
                turn = self._turn % self._readers.expected
                self.send(batch, {"free": None, "turns": turn, "all": "all"}[deal], timeout_s=timeout_s)
                self._turn += 1
            self.end_epoch(timeout_s=timeout_s)
        except AllLeftError:
            log.info("all workers have left")
        return self.sent - before

    def end_epoch(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """End an epoch: each worker leaves its loop over the reader, and may start another."""
        self._send_end(last=False, timeout_s=timeout_s)

    def end(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """End the data, for the connected workers and for those that connect later."""
        self._send_end(last=True, timeout_s=timeout_s)

    def fail(self, why: str) -> None:
        """Report an error to the workers, which raise it, and close."""
        with self._lock:
            if not self._closed:
                self._poll(0)  # A reader may have connected just now.
                self._readers.send_failure(why)
                self._sent_failure = True
        self.close()

    def close(self) -> None:
        """Disconnect; a second call does nothing. Batches that were sent still arrive."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._pid != os.getpid():
                return  # The parent of a forked child owns the socket.
            if not (self._ended or self._sent_failure):
                self._readers.send_failure("it was closed before the end of the data")
            self._readers.close()
            self._slots.close()
            if self.address:
                remove_socket(self.address)

    def __enter__(self) -> BatchServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, *_: Any) -> None:
        try:
            if exc is not None:
                self.fail(f"{type(exc).__name__}: {exc}")
            elif not (self._ended or self._closed):
                with contextlib.suppress(AllLeftError):  # No reader is left to notify.
                    self.end()
        finally:
            self.close()

    # Slots.

    @contextlib.contextmanager
    def _slot(
        self, layout: Plan, form: str, names: list[str], to: int | str | None, timeout_s: float
    ) -> Iterator[list[Any]]:
        """Yield the arrays of a free slot to be filled, and then send it."""
        self._require_target(to)
        deadline = awake() + timeout_s
        with self._lock:
            self._require_open()
            self._poll(0)
            index = self._slots.take(layout.size_bytes, self._readers.forget_slot)
        slot = self._slots[index]
        try:
            yield arrays_on(slot.memory, layout.parts)
            message = Batch(index, slot.size_bytes, False, to == "all", form, names, layout.parts)
            self._post(Dealt(message, 0, to is None), to, deadline, timeout_s)
        except BaseException:
            with self._lock:
                self._slots.free_unless_held(index)
            raise
        self.sent += 1

    # Dealing.

    def _post(self, dealt: Dealt, to: int | str | None, deadline: float, timeout_s: float) -> None:
        """Send a filled slot as soon as its readers may get another batch."""

        def hand() -> bool:
            handed = [self._hand(reader, dealt) for reader in self._readers.targets(to)]
            return any(handed)

        self._until(hand, deadline, timeout_s, -1.0)  # The caller has just polled.

    def _until(self, done: Callable[[], bool], deadline: float, timeout_s: float, wait_s: float) -> None:
        """Poll and deal, until nothing is pending and ``done`` returns True."""
        while True:
            with self._lock:
                self._require_open()
                if wait_s >= 0:
                    self._poll(wait_s)
                self._deal_pending()
                if not self._pending and done():
                    return
                self._require_reader(deadline, timeout_s)
            wait_s = min(LIVENESS_S, max(0.0, deadline - awake()))

    def _deal_pending(self) -> None:
        while self._pending and (targets := self._readers.targets(None)):
            if self._hand(targets[0], self._pending[0]):
                self._slots.give_back(self._pending.pop(0).message.slot)

    def _hand(self, reader: Any, dealt: Dealt) -> bool:
        slot = self._slots[dealt.message.slot]
        if not self._readers.hand(reader, dealt, slot.fd):
            self._drop(reader)
            return False
        self._slots.hold(dealt.message.slot)
        return True

    def _poll(self, timeout_s: float) -> None:
        """Read the readers' messages; wait for one, or for the end of a reader."""
        freed, gone = self._readers.poll(timeout_s, self._ended)
        for dealt in freed:
            self._slots.give_back(dealt.message.slot)
        for reader in gone:
            self._drop(reader)

    def _drop(self, reader: Any) -> None:
        untaken, rest = self._readers.drop(reader)
        self._pending += untaken  # Their slots stay held.
        for dealt in rest:
            self._slots.give_back(dealt.message.slot)

    def _require_reader(self, deadline: float, timeout_s: float) -> None:
        if self._readers.all_left:
            self._poll(0)  # A reader may have connected again before it left.
        if self._readers.all_left:
            raise AllLeftError("all workers have left, so no reader can receive a batch; end the server")
        if awake() > deadline:
            raise CollectiveTimeoutError(
                f"no worker had room for a batch within {timeout_s:g} s "
                f"({self._readers.describe()}): read the workers' logs, or pass a longer timeout_s"
            )

    def _require_open(self) -> None:
        """Raise if another thread has closed the server; the caller holds the lock."""
        if self._closed:
            raise ConfigurationError("this batch server is closed: open another one to send more")

    def _require_target(self, to: int | str | None) -> None:
        if self._closed or self._ended or self._pid != os.getpid():
            why = (
                "is a forked copy" if self._pid != os.getpid() else "has ended its data" if self._ended else "is closed"
            )
            raise ConfigurationError(f"this batch server {why}: open another one to send more")
        if to is None or to == "all":
            return
        if isinstance(to, str) or not 0 <= to < self._readers.expected:
            raise ConfigurationError(
                f'got to={to!r}: it must be "all" or a rank, 0 to {self._readers.expected - 1} (readers='
                f"{self._readers.expected})"
            )

    def _send_end(self, last: bool, timeout_s: float) -> None:
        self._require_target(None)

        def end() -> bool:
            if self._readers.all_came:
                self._ended = last
                for reader in self._readers.say(End(last)):
                    self._drop(reader)
            return self._readers.all_came

        self._until(end, awake() + timeout_s, timeout_s, 0.0)
