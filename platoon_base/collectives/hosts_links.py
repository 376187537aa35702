"""The links of one rank to its counterparts on the other hosts, for calls over several hosts."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable
from typing import Callable, NamedTuple, Protocol

import numpy as np

from platoon_base.collectives.host_exchange import describe
from platoon_base.dtypes import Array
from platoon_base.links.stream import BrokenStreamError, Stream
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout

# The kinds of records are in the lowest byte of a tag; the other bytes hold the number of a chunk.
# A head begins a call: its headline and a small array. Before it, a rank may report the ranks of
# its host that it waits for. Shares are data to combine; results are combined data, or data sent
# unchanged.
HEAD, SHARE, RESULT, BROKEN_CALL, LEAVING, WAITING = range(1, 7)
_HEADER_BYTES = 64  # Bytes of a headline.
_MAX_REASON = 4096
# After this time a counterpart is missing even if a part of its data has arrived.
_STALL_TIMEOUT_S = 0.5
_REMEDY = (
    ". Data in flight are lost: start the job again, with --resume if it has checkpoints. Does a firewall or a NAT "
    "between the hosts cut connections?"
)
_FLUSH_S = 0.3  # Bound on the time to send the last record.


class Counterpart(NamedTuple):
    """A rank of another host: ``member`` is its index in the group, ``rank`` that in the job."""

    host: int
    member: int
    rank: int
    name: str


class Work(Protocol):
    """Receives the data of a call."""

    def place(self, host: int, kind: int, chunk: int, offset: int, length: int) -> memoryview | None:
        """Return the memory for data from a host; None if they are not expected."""
        ...

    def done(self, host: int, kind: int, chunk: int, offset: int, length: int) -> None:
        """Record that the data have arrived in their place."""
        ...


class Link:
    """One connection and the `Receiver` of its records."""

    def __init__(self, links: Links, to: Counterpart, stream: Stream) -> None:
        self._links = links
        self.to = to
        self.stream = stream
        self.head: bytearray | None = None  # The head received for the current call.
        self.fits = False  # True if its headline equals this rank's.
        self.left = self.altered = False
        self.closed, self.closed_at = "", 0.0  # Why and when the link was closed.
        self.moved_at = 0.0
        self._buffer = bytearray()
        self._waits_for: list[int] = []

    @property
    def missing(self) -> list[int]:
        """The members that this link waits for: the counterpart, or those it waits for itself."""
        return self._waits_for if self.head is None and self._waits_for and not self.closed else [self.to.member]

    @property
    def payload(self) -> memoryview:
        """The array received in the head of this call; empty if there is none yet."""
        return memoryview(self.head or b"")[_HEADER_BYTES:]

    def owes_head(self) -> bool:
        """Return whether the head of the call is still to be received or sent."""
        return self.head is None or self.stream.sent < self.stream.posted

    def begin(self) -> None:
        self.head, self.fits, self._waits_for = None, False, []

    def place(self, tag: int, offset: int, length: int) -> memoryview | None:
        """Return a buffer for ``length`` bytes; None leaves the records for a later pull."""
        kind, links = tag & 255, self._links
        if kind in (SHARE, RESULT) and self.head is not None:
            if not self.fits or links.work is None:
                return None  # The call has failed, or is just ending here.
            place = links.work.place(self.to.host, kind, tag >> 8, offset, length)
            if place is None:
                raise BrokenStreamError(f"got {length} bytes at {offset} that no call expects", altered=True)
            return place
        if kind in (HEAD, WAITING) and offset == links.call + 1:
            return None  # The record belongs to the next call.
        known = kind == BROKEN_CALL or (kind == LEAVING and not length)
        if kind == HEAD and offset == links.call and self.head is None:
            known = length >= _HEADER_BYTES
        # It may belong to an earlier call, since a call need not read all links.
        elif kind == WAITING and offset <= links.call:
            known = length % 4 == 0
        if not known:
            raise BrokenStreamError(f"got a record of tag {tag} out of order", altered=True)
        self._buffer = bytearray(length)
        return memoryview(self._buffer)

    def done(self, tag: int, offset: int, length: int) -> None:
        """Handle a record with a payload in the buffer that `place` returned."""
        kind = tag & 255
        if kind == HEAD:
            self.head = self._buffer
            self.fits = self._buffer.startswith(self._links.header)
        elif kind in (SHARE, RESULT):
            if self._links.work is not None:
                self._links.work.done(self.to.host, kind, tag >> 8, offset, length)
        elif kind == LEAVING:
            self.left = True
        elif kind == WAITING:
            if offset == self._links.call and self.head is None:
                self._waits_for = np.frombuffer(self._buffer, np.int32).tolist()
        else:
            self._links.on_break(offset, self._buffer[:_MAX_REASON].decode(errors="replace"))

    def describe_head(self) -> Array | None:
        if self.head is None:
            return None
        header = np.frombuffer(self.head, np.int64, 8)
        try:
            describe(header)
        except IndexError:
            return None
        return header

    def close(self, why: str, altered: bool = False) -> None:
        if not self.closed:
            self.closed, self.closed_at, self.altered = why, awake(), altered
            self.stream.close()


class Links:
    """All links of a rank; ``on_break(how, text)`` is called when a rank reports a failure."""

    def __init__(self, streams: Iterable[tuple[Counterpart, Stream]], on_break: Callable[[int, str], None]) -> None:
        self.all = [Link(self, to, stream) for to, stream in streams]
        self.on_break = on_break
        self.call = 0
        self.header = b""
        self.work: Work | None = None
        self._reported: list[int] = []
        self._poll = select.poll()
        self._mask = {link.stream.fileno(): 0 for link in self.all}
        for descriptor in self._mask:
            self._poll.register(descriptor, 0)

    def begin(self, header: Array) -> None:
        self.header = header.tobytes()
        self.call += 1
        for link in self.all:
            link.begin()
        self._reported = []

    def announce(self, payload: bytes | memoryview) -> None:
        """Send the head of this call to all counterparts: the headline and a small array."""
        content = b"".join((self.header, payload))
        for link in self.all:
            link.stream.post(HEAD, self.call, content)
            self._push(link)

    def report_wait(self, members: list[int]) -> None:
        """Report to all counterparts which members of this host delay the head of this rank."""
        if members != self._reported:
            self._reported = members
            for link in self.all:
                link.stream.post(WAITING, self.call, np.array(members, np.int32).tobytes())
            self.pump()

    def post(self, link: Link, kind: int, chunk: int, start: int, data: memoryview, piece: int) -> None:
        """Send bytes in pieces; ``start`` is the receiver's offset of the first."""
        for at in range(0, len(data), piece):
            link.stream.post(kind | chunk << 8, start + at, data[at : at + piece])

    def pump(self, most: int = 16) -> bool:
        """Send and receive up to ``most`` records per link; return whether any moved."""
        moved = False
        for link in self.all:
            if link.closed:
                continue
            try:
                some = link.stream.push()
                if link.stream.pull(link, most):
                    some = True
                    link.stream.push()
            except BrokenStreamError as exc:
                self._drop(link, exc)
                continue
            if some:
                moved = True
                link.moved_at = awake()
        return moved

    def _push(self, link: Link) -> None:
        try:
            if not link.closed:
                link.stream.push()
        except BrokenStreamError as exc:
            self._drop(link, exc)

    def _drop(self, link: Link, why: BrokenStreamError) -> None:
        """Close a broken link. Receive earlier records first: they may hold the reason."""
        try:
            while not why.altered and link.stream.pull(link):
                pass
        except BrokenStreamError:
            pass
        self._forget(link)
        link.close(str(why), why.altered)

    def _forget(self, link: Link) -> None:
        descriptor = link.stream.fileno()
        if self._mask.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def wait(self, timeout_s: float) -> None:
        """Wait until data can be sent or received, at most ``timeout_s``."""
        for link in self.all:
            if not link.closed:
                mask = 0 if link.stream.held else select.POLLIN
                if link.stream.sent < link.stream.posted:
                    mask |= select.POLLOUT
                descriptor = link.stream.fileno()
                if self._mask[descriptor] != mask:
                    self._mask[descriptor] = mask
                    self._poll.modify(descriptor, mask)
        if self._mask:
            self._poll.poll(timeout_s * 1e3)
        else:
            time.sleep(timeout_s)

    def sent(self) -> bool:
        return all(link.stream.sent == link.stream.posted for link in self.all)

    def heads(self) -> bool:
        return all(link.head is not None for link in self.all)

    def agree(self) -> bool:
        """Return whether all counterparts have begun this call."""
        return all(link.fits for link in self.all)

    def differ(self) -> bool:
        return any(link.head is not None and not link.fits for link in self.all)

    def quiet(self, owes: Callable[[Link], bool]) -> list[Link]:
        """Return the links that owe data and have stalled."""
        before = awake() - _STALL_TIMEOUT_S
        owing = [link for link in self.all if owes(link)]
        return [link for link in owing if link.closed or link.head is None or link.moved_at < before]

    def broken(self, owes: Callable[[Link], bool]) -> str:
        """Describe a broken link that owes data; empty while a better reason may arrive."""
        now = awake()
        for link in self.all:
            if link.closed and (link.altered or now > link.closed_at + timeout("cause")) and owes(link):
                return f"the link to {link.to.name} is broken: {link.closed}{'' if link.altered else _REMEDY}"
        return ""

    def unanswered(self) -> str:
        """Describe the hosts that acknowledge nothing; empty if there are none."""
        silent = [(link.to.name, 0.0 if link.closed else link.stream.unanswered_s()) for link in self.all]
        least_s = timeout("link")
        found = [f"{name} has been unreachable for {seconds:.0f} s" for name, seconds in silent if seconds > least_s]
        return f"{'; '.join(found)}. Is the network between the hosts slow or down?" if found else ""

    def send_last_record(self, how: int | None, text: bytes) -> None:
        """Report a failed call (``how``), or that this rank leaves (None), before queued data."""
        kind, offset = (LEAVING, 0) if how is None else (BROKEN_CALL, how)
        for link in self.all:
            if not link.closed:
                link.stream.drop_queue()
                link.stream.post(kind, offset, text[:_MAX_REASON])
        deadline = awake() + _FLUSH_S
        while not all(link.closed or link.stream.torn or link.stream.sent == link.stream.posted for link in self.all):
            for link in self.all:
                self._push(link)
            left_s = deadline - awake()
            if left_s <= 0:
                break
            if not self.sent():
                time.sleep(min(left_s, 1e-3))

    def close(self) -> None:
        for link in self.all:
            if not link.closed:
                self._forget(link)
                link.close("this rank has closed it")
        self.work = None


def as_bytes(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
