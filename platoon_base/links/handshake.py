"""How a process opens its links: it listens and connects concurrently, and both sides authenticate.

A caller sends a greeting: a new public key, its rank and the rank that it connects to. The listener
answers with its own new public key and a proof: an HMAC of all bytes so far, keyed by its secret.
Then the caller proves itself in the same way, and the listener confirms. No secret is ever sent.
Other processes learn only that the port is open, and occupy a socket for at most the timeout
``handshake``. The secret is derived from a key of the job or user and a token of the listener,
which publishes the token over the control plane. Records are encrypted with keys from this secret
and the two public keys. Without encryption there is no key, and random numbers replace the public
keys: then only the token authenticates, and data are neither encrypted nor protected against
changes.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import hmac
import logging
import math
import os
import secrets
import selectors
import socket
import struct
from collections.abc import Generator, Iterable, Mapping, Set
from typing import Any, Callable, NamedTuple

from platoon_base.errors import PlatoonError
from platoon_base.links.stream import Cipher, KeyExchange, Stream, derive_keys
from platoon_base.system.process import awake
from platoon_base.timeouts import POLL_S, timeout

log = logging.getLogger(__name__)

MAX_PENDING = 256  # Connections without a greeting; beyond this the oldest are dropped.
# Connections that have claimed a rank but are not authenticated; or twice the expected number.
MAX_GREETED = 64
# The system queues connections until this process polls, as couriers do every 0.05 s.
_BACKLOG = 256
_FIRST_CALL_S = 0.5  # Timeout of the first attempt to connect; it doubles for each further one.
# After 5 attempts the timeout is short again: under a SYN flood most attempts are dropped.
_CALLS = 5
_RETRY_INTERVAL_S, _MAX_RETRY_INTERVAL_S = 0.05, 0.5  # Interval between attempts.
WRONG_PROOFS = 3  # After this number of wrong proofs in a row, a rank's address counts as wrong.
_GREETING = struct.Struct("<8s32sII")
_MAGIC = b"PLTNLNK2"
_NUMBER_BYTES = _PROOF_BYTES = 32
_YES = b"\1"
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

# A generator that yields the event it waits for.
_Steps = Generator[int, None, "tuple[int, Stream]"]


class Address(NamedTuple):
    """The address at which a process of a job listens; only processes of the job know the token."""

    host: str
    port: int
    token: bytes


class Listener:
    """Listens at this host's address ``host``; by default at any port, with a token of its own."""

    def __init__(self, host: str, port: int = 0, token: bytes = b"") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self.sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as exc:
            raise PlatoonError(
                f"cannot listen at {host} for the links of the other hosts ({exc}): it must be an "
                "address of this host that the others can reach"
            ) from exc
        self.sock.setblocking(False)
        self.address = Address(host, self.sock.getsockname()[1], token or secrets.token_bytes(16))

    def close(self) -> None:
        self.sock.close()


class _RefusedError(Exception):
    """The other side sent no valid proof, or does not speak this protocol."""


class _WrongProofError(_RefusedError):
    """Another process than the expected one answers at the address."""


class Caller(NamedTuple):
    """The identity of this process in a handshake; ``expected`` ranks connect to it, None for any."""

    rank: int
    data_key: bytes
    expected: Set[int] | None


def _read(sock: socket.socket, size: int) -> Generator[int, None, bytes]:
    parts = b""
    while len(parts) < size:
        try:
            part = sock.recv(size - len(parts))
        except BlockingIOError:
            yield _READ
            continue
        if not part:
            raise _RefusedError("it closed the connection")
        parts += part
    return parts


class _Numbers:
    """The secret that both sides prove to know, and its keys; ``mine`` is this side's public number."""

    def __init__(self, data_key: bytes, token: bytes) -> None:
        self._secret = hmac.new(data_key, token, hashlib.sha256).digest()
        self._exchange = KeyExchange() if data_key else None
        self.mine = secrets.token_bytes(_NUMBER_BYTES) if self._exchange is None else self._exchange.public

    def proof(self, role: bytes, transcript: bytes) -> bytes:
        return hmac.new(self._secret, role + transcript, hashlib.sha256).digest()

    def stream(self, sock: socket.socket, theirs: bytes, transcript: bytes, calls: bool) -> Stream:
        if self._exchange is None:
            return Stream(sock, None, None)
        try:
            shared = self._exchange.shared(theirs)
        except ValueError as exc:
            raise _RefusedError(f"its public key is invalid: {exc}") from exc
        of_caller, of_listener = derive_keys(self._secret + shared, transcript)
        sends, receives = (of_caller, of_listener) if calls else (of_listener, of_caller)
        return Stream(sock, Cipher(sends), Cipher(receives))


def _answer(sock: socket.socket, mine: Caller, token: bytes, greet: Callable[[], None]) -> _Steps:
    """Serve an incoming connection; call ``greet()`` when its greeting fits this job."""
    magic = yield from _read(sock, len(_MAGIC))
    if magic != _MAGIC:
        raise _RefusedError("it is not a process of a job, or has another version")
    greeting = magic + (yield from _read(sock, _GREETING.size - len(magic)))
    _, theirs, caller, called = _GREETING.unpack(greeting)
    if called != mine.rank or (mine.expected is not None and caller not in mine.expected):
        raise _RefusedError(f"it calls rank {called} as rank {caller}")
    greet()
    numbers = _Numbers(mine.data_key, token)
    transcript = greeting + numbers.mine
    # The first bytes of a connection always fit into the buffer.
    sock.send(numbers.mine + numbers.proof(b"listener", transcript))
    try:
        proof = yield from _read(sock, _PROOF_BYTES)
    except _RefusedError:
        proof = b""  # It does not trust this side.
    if not hmac.compare_digest(proof, numbers.proof(b"caller", transcript)):
        raise _RefusedError("it does not have the key of this job")
    stream = numbers.stream(sock, theirs, transcript, calls=False)
    sock.send(_YES)
    return caller, stream


def _call(sock: socket.socket, mine: Caller, rank: int, address: Address) -> _Steps:
    code = sock.connect_ex((address.host, address.port))
    while code:
        yield _WRITE
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        break
    numbers = _Numbers(mine.data_key, address.token)
    greeting = _GREETING.pack(_MAGIC, numbers.mine, mine.rank, rank)
    sock.send(greeting)
    answer = yield from _read(sock, _NUMBER_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:_NUMBER_BYTES], answer[_NUMBER_BYTES:]
    transcript = greeting + theirs
    if not hmac.compare_digest(proof, numbers.proof(b"listener", transcript)):
        raise _WrongProofError(
            f"the process at {address.host} port {address.port} is not rank {rank} of this job, "
            "or has another key or version: start all hosts of a job with the same key file"
        )
    sock.send(numbers.proof(b"caller", transcript))
    yield from _read(sock, len(_YES))
    return rank, numbers.stream(sock, theirs, transcript, calls=True)


class _Pending(NamedTuple):
    steps: _Steps
    called: int | None  # The rank that this process calls.
    until: float


class Opening:
    """All handshakes of one process, which run concurrently; other connections cannot disturb them.

    ``greeted`` connections have claimed a rank but not proven it. The caller fetches ``open``
    links, by rank. ``wrong`` counts, by rank, how often in a row another process answered at its
    address.
    """

    def __init__(self, listener: Listener | None, mine: Caller, calls: Mapping[int, Address]) -> None:
        self._listener, self._mine = listener, mine
        self._calls = dict(calls)
        # Time of the next call, for ranks that are not being called.
        self._retry_at = dict.fromkeys(calls, 0.0)
        self._tries: dict[int, int] = {}  # Attempts since the last link to a rank.
        self._why: dict[int, str] = {}  # Why the last attempt failed.
        self.wrong: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            self._selector.register(listener.sock, _READ)
        self._pending: dict[socket.socket, _Pending] = {}
        # Connections without a greeting, the oldest first.
        self._silent: dict[socket.socket, None] = {}
        self.greeted: list[socket.socket] = []
        self._refused = 0
        self._accepts_at = 0.0  # Time of the next attempt to get a file descriptor.
        self.open: dict[int, Stream] = {}

    def fileno(self) -> int:
        """Return a file descriptor that is readable when `step` has something to do."""
        return self._selector.fileno()

    def call(self, rank: int, address: Address) -> None:
        """Connect to a rank at this address, which replaces an earlier one."""
        if self._calls.get(rank) != address:
            self.forget(rank)
        self._calls[rank] = address
        self.call_again(rank)

    def call_again(self, rank: int) -> None:
        if rank in self._calls and all(pending.called != rank for pending in self._pending.values()):
            self._retry_at.setdefault(rank, 0.0)

    def forget(self, rank: int) -> None:
        """Stop connecting to a rank until `call` gives its address."""
        for known in (self._calls, self._retry_at, self._tries, self._why, self.wrong):
            known.pop(rank, None)
        for sock in [sock for sock, pending in self._pending.items() if pending.called == rank]:
            self._remove(sock).steps.close()
            sock.close()

    @property
    def missing(self) -> list[int]:
        return sorted(((self._mine.expected or set()) | self._calls.keys()) - self.open.keys())

    def why(self, ranks: Iterable[int] | None = None) -> str:
        told = [(rank, why) for rank, why in self._why.items() if ranks is None or rank in ranks]
        return "".join(f"; rank {rank} at {self._calls[rank].host}: {why}" for rank, why in told)

    def step(self, until: float) -> None:
        """Advance all handshakes, until one event or the given time of `awake`."""
        now = awake()
        for rank in [rank for rank, at in self._retry_at.items() if at <= now]:
            del self._retry_at[rank]
            self._call(rank)
        if self._listener is not None and self._accepts_at and self._accepts_at <= now:
            self._accepts_at = 0.0
            self._selector.register(self._listener.sock, _READ)
        moments = [until, *self._retry_at.values(), *(pending.until for pending in self._pending.values())]
        soonest = min([*moments, self._accepts_at] if self._accepts_at else moments)
        for key, _ in self._selector.select(max(0.0, soonest - awake())):
            if self._listener is not None and key.fileobj is self._listener.sock:
                self._accept(self._listener)
            elif key.fileobj in self._pending:  # An earlier event may have dropped it.
                self._go_on(key.fileobj)
        now = awake()
        for sock in [sock for sock, pending in self._pending.items() if pending.until <= now]:
            self._drop(sock, "no answer in time")

    def _call(self, rank: int) -> None:
        address = self._calls[rank]
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
        except OSError as exc:  # There is no free descriptor.
            self._call_later(rank, str(exc))
            return
        # The system of a listener with many callers may drop the first packet, so the first timeouts are
        # short. They grow to 8 s, which suffices for three round trips of 2 s.
        patience_s = _FIRST_CALL_S * 2 ** (self._tries.get(rank, 0) % _CALLS)
        self._begin(sock, _Pending(_call(sock, self._mine, rank, address), rank, awake() + patience_s))

    def _call_later(self, rank: int, why: str) -> None:
        tries = self._tries[rank] = self._tries.get(rank, 0) + 1
        self._why[rank] = why
        self._retry_at[rank] = awake() + min(_RETRY_INTERVAL_S * 2 ** min(tries - 1, 10), _MAX_RETRY_INTERVAL_S)

    def _accept(self, listener: Listener) -> None:
        for _ in range(_BACKLOG):
            try:
                sock, _ = listener.sock.accept()
            except OSError as exc:
                if exc.errno in _NO_DESCRIPTOR:
                    self._accept_later(listener, exc)
                return
            if len(self._silent) >= MAX_PENDING:
                self._drop(next(iter(self._silent)), "too many other connections arrived")
            self._silent[sock] = None
            steps = _answer(sock, self._mine, listener.address.token, functools.partial(self._greet, sock))
            self._begin(sock, _Pending(steps, None, awake() + timeout("handshake")))

    def _accept_later(self, listener: Listener, why: OSError) -> None:
        """Close unauthenticated connections, and accept again after a pause."""
        if not self._silent:
            log.warning("cannot accept the connections of other hosts (%s): raise the limit (ulimit -n)", why)
        # Without the pause the listener would stay readable.
        for sock in [*self._silent]:
            self._drop(sock, str(why))
        self._selector.unregister(listener.sock)
        self._accepts_at = awake() + _RETRY_INTERVAL_S

    def _greet(self, sock: socket.socket) -> None:
        """Keep a connection that claims a rank; if there are too many, drop one at random."""
        del self._silent[sock]
        if len(self.greeted) >= max(MAX_GREETED, 2 * len(self._mine.expected or ())):
            self._drop(secrets.choice(self.greeted), "too many other connections arrived")
        self.greeted.append(sock)

    def _begin(self, sock: socket.socket, pending: _Pending) -> None:
        sock.setblocking(False)
        self._pending[sock] = pending
        self._selector.register(sock, _WRITE if pending.called is not None else _READ)
        self._go_on(sock)

    def _go_on(self, sock: socket.socket) -> None:
        try:
            self._selector.modify(sock, next(self._pending[sock].steps))
        except StopIteration as end:
            rank, stream = end.value
            self._remove(sock)
            for known in (self._tries, self._why, self.wrong):
                known.pop(rank, None)
            old = self.open.pop(rank, None)  # A caller that lost its first connection calls again.
            if old is not None:
                old.close()
            self.open[rank] = stream
        except (_RefusedError, OSError) as exc:
            self._drop(sock, str(exc), isinstance(exc, _WrongProofError))
        except BaseException as exc:
            self._drop(sock, str(exc))
            raise

    def _remove(self, sock: socket.socket) -> _Pending:
        self._selector.unregister(sock)
        self._silent.pop(sock, None)
        if sock in self.greeted:
            self.greeted.remove(sock)
        return self._pending.pop(sock)

    def _drop(self, sock: socket.socket, why: str, wrong: bool = False) -> None:
        pending = self._remove(sock)
        rank = pending.called
        if rank is not None:
            self._call_later(rank, why)
            if wrong:
                self.wrong[rank] = self.wrong.get(rank, 0) + 1
                if self.wrong[rank] == WRONG_PROOFS:
                    log.warning("no link to rank %d: %s", rank, why)
            else:
                self.wrong.pop(rank, None)
        else:
            self._refused += 1
            if self._refused == 1:  # Warn only once: there may be many.
                log.warning("refused a connection from %s to the links of this job's hosts: %s", _peer(sock), why)
        pending.steps.close()
        sock.close()

    def close(self) -> None:
        for sock in [*self._pending]:
            self._remove(sock).steps.close()
            sock.close()
        self._selector.close()


def _peer(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return "an unknown address"


def open_links(
    listener: Listener,
    rank: int,
    data_key: bytes,
    calls: Mapping[int, Address],
    expected: frozenset[int],
    deadline: float,
    give_up: Callable[[list[int]], Any],
) -> dict[int, Stream]:
    """Open a link to each of the given ranks until a deadline of `awake`; the listener stays open.

    ``data_key`` is the same on all hosts; empty if data are not encrypted. This process connects to
    the ranks in ``calls``, and ``expected`` ranks connect to it. ``give_up(ranks)`` gets the
    missing ranks several times a second and raises if waiting is pointless. Raises `PlatoonError`
    at the deadline, or if another process answers at the address of a rank.
    """
    opening = Opening(listener, Caller(rank, data_key, expected), calls)
    asks_at, warns_at = 0.0, awake() + timeout("link")
    try:
        while opening.missing:
            now = awake()
            if now >= min(deadline, warns_at):
                who = f"rank {rank} has no link to the ranks {opening.missing} of other hosts"
                why = f"{opening.why()}: can the hosts reach each other on all ports (firewalls), at these addresses?"
                if now >= deadline:
                    raise PlatoonError(f"{who} in time{why}")
                warns_at = math.inf
                log.warning("%s so far%s", who, why)
            wrong = [rank for rank, count in opening.wrong.items() if count >= WRONG_PROOFS]
            if wrong:
                raise PlatoonError(f"rank {rank} has no link to the ranks {wrong} of other hosts{opening.why(wrong)}")
            if now >= asks_at:  # A flood of connections must not call it more often.
                asks_at = now + POLL_S
                give_up(opening.missing)
            opening.step(min(deadline, asks_at))
        return opening.open
    except BaseException:
        for stream in opening.open.values():
            stream.close()
        raise
    finally:
        opening.close()
