"""The readers of a server: who is connected, holds which batches, and gets the next one."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from platoon_base.data.batch_link import Link
from platoon_base.data.batch_memory import (
    Batch,
    Bye,
    End,
    Failed,
    Freed,
    Hello,
    decode_from_reader,
    encode,
)
from platoon_base.errors import ProtocolError

log = logging.getLogger(__name__)

_MAX_WHY = 6000  # Characters.


class Dealt(NamedTuple):
    """A batch in a slot; ``number`` is counted per reader from 1, or 0 before it is dealt."""

    message: Batch
    number: int
    any_reader: bool  # Any reader may get it.


class Reader:
    """One reader; ``dealt`` are its batches by slot, ``known`` the slots that it has mapped."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.rank, self.ahead = -1, 0  # The reader has not introduced itself yet.
        self.count = self.taken = 0
        self.dealt: dict[int, Dealt] = {}
        self.known: set[int] = set()
        self.left_in_order = False

    @property
    def has_room(self) -> bool:
        return len(self.dealt) < self.ahead and self.link.has_room


class Readers:
    """All readers of a server; ``remaining`` returns the ranks that may still read, None if
    unknown.
    """

    def __init__(
        self, expected: int, listener: socket.socket | None, remaining: Callable[[], set[int] | None] | None = None
    ) -> None:
        self.expected = expected
        self._remaining = remaining or (lambda: None)
        self.lost = 0  # Batches that died with their worker.
        self._listener = listener
        self._poll = select.poll()
        self._links: dict[int, Reader] = {}  # Keys are file descriptors of sockets and processes.
        # Readers that have introduced themselves; the one that waits longest comes first.
        self._readers: list[Reader] = []
        self._came: set[int] = set()
        self._missed: set[int] = set()  # Ranks that died and have not connected again.
        if listener is not None:
            self._poll.register(listener, select.POLLIN)

    # Connections.

    @property
    def all_came(self) -> bool:
        """Whether as many ranks as expected have connected; some may have left."""
        return len(self._came) >= self.expected

    @property
    def all_left(self) -> bool:
        """Whether all ranks have connected and left; dead ones may restart and do not count."""
        if self._listener is None or self._links:
            return not self._links
        remaining = self._remaining()
        if remaining is None:
            return self.all_came and not self._missed
        return remaining <= self._came - self._missed

    def describe(self) -> str:
        waits = f"{len(self._came)} of {self.expected} workers have connected"
        holds = [f"rank {r.rank} (pid {r.link.pid}) has {len(r.dealt)} of {r.ahead}" for r in self._readers]
        dead = [f"rank {rank} has died" for rank in sorted(self._missed)]
        return "; ".join([waits, *holds, *dead])

    def add(self, link: Link) -> None:
        """Accept a connection, which must send `Hello` first."""
        reader = Reader(link)
        for fd in (link.fileno(), link.pidfd):
            if fd >= 0:
                self._links[fd] = reader
                self._poll.register(fd, select.POLLIN)

    def poll(self, timeout_s: float, ended: bool) -> tuple[list[Dealt], list[Reader]]:
        """Read messages; return freed batches and readers to drop. ``ended``: notify new ones."""
        freed: list[Dealt] = []
        gone: dict[int, Reader] = {}
        for fd, _ in self._poll.poll(max(0, round(timeout_s * 1e3))):
            reader = self._links.get(fd)
            if reader is None:
                self._accept()
            elif id(reader) not in gone and not self._read(reader, freed, ended, fd == reader.link.pidfd):
                gone[id(reader)] = reader
        return freed, list(gone.values())

    def _accept(self) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            sock, _ = self._listener.accept()
            try:
                link = Link(sock)
                if link.dead:
                    link.close()
                else:
                    self.add(link)
            except ProtocolError as exc:
                log.warning("%s", exc)

    def _read(self, reader: Reader, freed: list[Dealt], ended: bool, dead: bool) -> bool:
        while True:
            try:
                frame = reader.link.receive_plain()
                if not frame:
                    return False
                self._take(reader, decode_from_reader(frame), freed, ended)
            except BlockingIOError:
                return not dead
            except OSError:
                return False
            except ProtocolError as exc:
                log.warning("stopped sending batches to rank %d: %s", reader.rank, exc)
                self._send(reader, Failed(str(exc)[:_MAX_WHY]))
                return False

    def _take(self, reader: Reader, message: Hello | Freed | Bye, freed: list[Dealt], ended: bool) -> None:
        if isinstance(message, Freed):
            if message.slot not in reader.dealt:
                raise ProtocolError(f"got slot {message.slot} back, which this reader does not have")
            reader.taken = message.taken
            freed.append(reader.dealt.pop(message.slot))
        elif isinstance(message, Bye):
            reader.left_in_order = True
        elif reader.rank >= 0:
            raise ProtocolError("got a second hello from one reader")
        else:
            reader.rank, reader.ahead = message.rank, message.ahead
            self._readers.append(reader)
            self._came.add(reader.rank)
            self._missed.discard(reader.rank)
            if ended:
                self._send(reader, End(last=True))

    # Dealing.

    def targets(self, to: int | str | None) -> list[Reader]:
        """Return the readers that get a batch now; none if it has to wait."""
        if to == "all":
            ready = self.all_came and all(reader.has_room for reader in self._readers)
            return list(self._readers) if ready else []
        if to is not None:
            if to not in self._came:
                return []
            theirs = [reader for reader in self._readers if reader.rank == to]
            if theirs:
                return [reader for reader in theirs if reader.has_room][:1]
        free = [reader for reader in self._readers if reader.has_room]
        return [min(free, key=lambda reader: len(reader.dealt))] if free else []

    def hand(self, reader: Reader, dealt: Dealt, fd: int) -> bool:
        """Send a batch; False if the reader is gone, or does not read its messages."""
        index = dealt.message.slot
        new = index not in reader.known
        message = msgspec.structs.replace(dealt.message, new=True) if new else dealt.message
        if not self._send(reader, message, fd if new else -1):
            return False
        reader.known.add(index)
        reader.count += 1
        reader.dealt[index] = dealt._replace(number=reader.count)
        self._readers.remove(reader)
        self._readers.append(reader)
        return True

    def forget_slot(self, index: int) -> None:
        """Record that a slot has new memory, which each reader has to map."""
        for reader in self._readers:
            reader.known.discard(index)

    def drop(self, reader: Reader) -> tuple[list[Dealt], list[Dealt]]:
        """Drop a reader; return its batches that other readers can get, and the rest of them."""
        if reader.link.fileno() not in self._links:
            return [], []
        freed = self._drain(reader)
        for fd in (reader.link.fileno(), reader.link.pidfd):
            if self._links.pop(fd, None) is not None:
                self._poll.unregister(fd)
        reader.link.close()
        had = list(reader.dealt.values())
        reader.dealt = {}
        if reader not in self._readers:
            return [], had + freed
        self._readers.remove(reader)
        # The first batch is not reported as taken before it is freed.
        untaken = [dealt for dealt in had if dealt.any_reader and dealt.number > max(1, reader.taken)]
        if not reader.left_in_order:
            self._missed.add(reader.rank)
            lost = len(had) - len(untaken)
            self.lost += lost
            log.warning(
                "rank %d (pid %d) disconnected with %d batches; %d others go to other workers",
                reader.rank, reader.link.pid, lost, len(untaken),
            )  # fmt: skip
        kept = {dealt.number for dealt in untaken}
        return untaken, freed + [dealt for dealt in had if dealt.number not in kept]

    def _drain(self, reader: Reader) -> list[Dealt]:
        """Read a reader's last messages: it may have left normally before a send to it failed."""
        freed: list[Dealt] = []
        if reader in self._readers:
            with contextlib.suppress(OSError, ProtocolError):
                while frame := reader.link.receive_plain():
                    self._take(reader, decode_from_reader(frame), freed, ended=True)
        return freed

    def say(self, message: End | Failed) -> list[Reader]:
        return [reader for reader in self._readers if not self._send(reader, message)]

    def send_failure(self, why: str) -> None:
        for reader in self._each():
            self._send(reader, Failed(why[:_MAX_WHY]))

    def _send(self, reader: Reader, message: Batch | End | Failed, fd: int = -1) -> bool:
        try:
            return reader.link.send(encode(message), fd)
        except BlockingIOError:
            log.warning("stopped sending batches to rank %d: it does not read its messages", reader.rank)
            return False

    def close(self) -> None:
        for reader in self._each():
            self.drop_quietly(reader)
        if self._listener is not None:
            self._listener.close()

    def drop_quietly(self, reader: Reader) -> None:
        """Disconnect a reader without a warning."""
        reader.left_in_order = True
        self.drop(reader)

    def _each(self) -> Iterable[Reader]:
        return {id(reader): reader for reader in self._links.values()}.values()
