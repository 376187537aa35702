"""How a process opens its links: it listens and connects at the same time, and each side authenticates itself.

A caller sends a greeting: a random number, its own rank and the rank that it connects to. The listener answers with
another random number and a proof: an HMAC of all bytes exchanged so far, keyed by the listener's secret. Then the
caller proves itself in the same way, and the listener confirms. No secret is ever sent. Other processes that connect
learn only that the port is open, and cost a socket for at most `HANDSHAKE_S` seconds.

The secret is derived from the job's data key and from a token that the listener published over the control plane. A
job without encryption has no data key: then the token alone proves that the caller belongs to the job, and the data
that follow are neither encrypted nor protected against changes.
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
from platoon_base.links.cipher import Cipher, derive_keys
from platoon_base.links.stream import Stream
from platoon_base.system.awake import awake

__all__ = ["HANDSHAKE_S", "WARNING_S", "Address", "Caller", "Listener", "Opening", "open_links"]

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0  # that one has to prove itself in
MAX_PENDING = 256  # who have said nothing so far; the oldest make room for others
MAX_GREETED = 64  # who have said which rank they are, and not proven it; or as many as are expected, twice
_BACKLOG = 256  # those that the system takes until this process looks, as couriers do every 0.05 s; they wait in turn
_FIRST_CALL_S = 0.5  # that a listener has to answer the first call in; the next have twice the time each
# After 5 attempts the timeout is short again: under a SYN flood most attempts are dropped.
_CALLS = 5
_RETRY_INTERVAL_S, _MAX_RETRY_INTERVAL_S = 0.05, 0.5  # between two calls of one listener
_WRONG_PROOFS = 3  # of one rank, one after the other, that are no chance any more
_POLL_INTERVAL_S = 0.2  # between two questions whether it makes sense to wait
WARNING_S = 8.0  # A host whose link does not open, or does not carry data, for so long is named in a warning.
_GREETING = struct.Struct("<8s32sII")
_MAGIC = b"PLTNLNK1"
_NUMBER_BYTES = _PROOF_BYTES = 32
_YES = b"\1"
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

_Steps = Generator[int, None, "tuple[int, Stream]"]  # yields the event it waits for


class Address(NamedTuple):
    """The address that a process of a job listens at, as published to the other processes.

    Attributes
    ----------
    host : str
        An IP address.
    port : int
    token : bytes
        Known only to the job's processes.
    """

    host: str
    port: int
    token: bytes


class Listener:
    """Listens on a port of this host until all links of this process are open.

    Parameters
    ----------
    host : str
        The IP address by which the other hosts reach this one.

    Raises
    ------
    PlatoonError
        If this host does not have that address.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self.sock = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        except OSError as exc:
            raise PlatoonError(
                f"cannot listen at {host} for the links of the other hosts ({exc}): that must be an address of this "
                "host by which the others reach it"
            ) from exc
        self.sock.setblocking(False)
        self.address = Address(host, self.sock.getsockname()[1], secrets.token_bytes(16))

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        self.sock.close()


class _RefusedError(Exception):
    """The other side sent no valid proof, or does not speak this protocol."""


class _WrongProofError(_RefusedError):
    """Another process than the expected one answers at the address."""


class Caller(NamedTuple):
    """The caller's process, as it introduces itself in a handshake."""

    rank: int
    data_key: bytes
    expected: Set[int]


def _secret(data_key: bytes, token: bytes) -> bytes:
    return hmac.new(data_key, token, hashlib.sha256).digest()


def _proof(secret: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.new(secret, role + transcript, hashlib.sha256).digest()


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


def _stream(sock: socket.socket, mine: Caller, secret: bytes, transcript: bytes, calls: bool) -> Stream:
    if not mine.data_key:
        return Stream(sock, None, None)
    of_caller, of_listener = derive_keys(secret, transcript)
    sends, receives = (of_caller, of_listener) if calls else (of_listener, of_caller)
    return Stream(sock, Cipher(sends), Cipher(receives))


def _answer(sock: socket.socket, mine: Caller, token: bytes, greet: Callable[[], None]) -> _Steps:
    """Serve an incoming connection; ``greet()`` is called once its greeting looks like one of this job."""
    greeting = yield from _read(sock, _GREETING.size)
    magic, _, caller, called = _GREETING.unpack(greeting)
    if magic != _MAGIC:
        raise _RefusedError("it is no process of a job, or one of another version")
    if called != mine.rank or caller not in mine.expected:
        raise _RefusedError(f"it calls rank {called} as rank {caller}")
    greet()
    number, secret = secrets.token_bytes(_NUMBER_BYTES), _secret(mine.data_key, token)
    transcript = greeting + number
    sock.send(number + _proof(secret, b"listener", transcript))  # the first bytes that are sent always find room
    proof = yield from _read(sock, _PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(secret, b"caller", transcript)):
        raise _RefusedError("it does not know this job's key")
    sock.send(_YES)
    return caller, _stream(sock, mine, secret, transcript, calls=False)


def _call(sock: socket.socket, mine: Caller, rank: int, address: Address) -> _Steps:
    """Connect to the listener of a rank."""
    code = sock.connect_ex((address.host, address.port))
    while code:
        yield _WRITE
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        break
    greeting = _GREETING.pack(_MAGIC, secrets.token_bytes(_NUMBER_BYTES), mine.rank, rank)
    sock.send(greeting)
    answer = yield from _read(sock, _NUMBER_BYTES + _PROOF_BYTES)
    number, proof = answer[:_NUMBER_BYTES], answer[_NUMBER_BYTES:]
    secret, transcript = _secret(mine.data_key, address.token), greeting + number
    if not hmac.compare_digest(proof, _proof(secret, b"listener", transcript)):
        raise _WrongProofError(
            f"what listens at {address.host} port {address.port} is not rank {rank} of this job, or has another key: "
            "start all hosts of a job with the same key file"
        )
    sock.send(_proof(secret, b"caller", transcript))
    yield from _read(sock, len(_YES))
    return rank, _stream(sock, mine, secret, transcript, calls=True)


class _Pending(NamedTuple):
    """A handshake in progress."""

    steps: _Steps
    called: int | None  # the rank that this process calls
    until: float


class Opening:
    """All handshakes of one process, which run concurrently; connections from outside the job cannot disturb them.

    Attributes
    ----------
    greeted : list of socket
        Connections that have claimed a rank and not proven it yet.
    open : dict of int to Stream
        The open links that the caller has not fetched yet.
    wrong : dict of int to int
        By rank, how many times in a row another process has answered at its address.
    """

    def __init__(self, listener: Listener | None, mine: Caller, calls: Mapping[int, Address]) -> None:
        self._listener, self._mine = listener, mine
        self._calls = dict(calls)
        self._retry_at = dict.fromkeys(calls, 0.0)  # when to call next; without those that are being called
        self._tries: dict[int, int] = {}  # since the last link to a rank
        self._why: dict[int, str] = {}  # the last call of a rank was in vain
        self.wrong: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            self._selector.register(listener.sock, _READ)
        self._pending: dict[socket.socket, _Pending] = {}
        self._silent: dict[socket.socket, None] = {}  # of those that have called, the oldest first
        self.greeted: list[socket.socket] = []
        self._refused = 0
        self._accepts_at = 0.0  # when this process may have a file descriptor again
        self.open: dict[int, Stream] = {}

    def fileno(self) -> int:
        """Return a file descriptor that is readable when `step` has something to do."""
        return self._selector.fileno()

    def call(self, rank: int, address: Address) -> None:
        """Connect to a rank from now on, at this address, which replaces an earlier one."""
        if self._calls.get(rank) != address:
            self.forget(rank)
        self._calls[rank] = address
        self.call_again(rank)

    def call_again(self, rank: int) -> None:
        """Connect to a rank again whose link has broken."""
        if rank in self._calls and all(pending.called != rank for pending in self._pending.values()):
            self._retry_at[rank] = 0.0

    def forget(self, rank: int) -> None:
        """Stop connecting to a rank until `call` gives an address of it."""
        for known in (self._calls, self._retry_at, self._tries, self._why, self.wrong):
            known.pop(rank, None)
        for sock in [sock for sock, pending in self._pending.items() if pending.called == rank]:
            self._remove(sock).steps.close()
            sock.close()

    @property
    def missing(self) -> list[int]:
        """The ranks without an open link."""
        return sorted((self._mine.expected | self._calls.keys()) - self.open.keys())

    def why(self, ranks: Iterable[int] | None = None) -> str:
        """Return the latest failures of these ranks, as text."""
        told = [(rank, why) for rank, why in self._why.items() if ranks is None or rank in ranks]
        return "".join(f"; rank {rank} at {self._calls[rank].host}: {why}" for rank, why in told)

    def step(self, until: float) -> None:
        """Advance all handshakes, until something has happened or the given time has come."""
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
            elif key.fileobj in self._pending:  # it may have been dropped for another one
                self._go_on(key.fileobj)
        now = awake()
        for sock in [sock for sock, pending in self._pending.items() if pending.until <= now]:
            self._drop(sock, "no answer in time")

    def _call(self, rank: int) -> None:
        address = self._calls[rank]
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
        except OSError as exc:  # no descriptor is free
            self._call_later(rank, str(exc))
            return
        # Where many call, the system may have dropped the first packet.
        patience_s = _FIRST_CALL_S * 2 ** (self._tries.get(rank, 0) % _CALLS)  # up to 8 s: three round trips of 2 s
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
                self._drop(next(iter(self._silent)), "too many others came")
            self._silent[sock] = None
            steps = _answer(sock, self._mine, listener.address.token, functools.partial(self._greet, sock))
            self._begin(sock, _Pending(steps, None, awake() + HANDSHAKE_S))

    def _accept_later(self, listener: Listener, why: OSError) -> None:
        """Close unauthenticated connections, and accept again after a pause: the listener stays readable."""
        if not self._silent:
            log.warning("cannot take the connections of other hosts (%s): raise the limit (ulimit -n)", why)
        for sock in [*self._silent]:
            self._drop(sock, str(why))
        self._selector.unregister(listener.sock)
        self._accepts_at = awake() + _RETRY_INTERVAL_S

    def _greet(self, sock: socket.socket) -> None:
        """Keep a connection that claims to be of this job; of too many drop any but the oldest, most likely genuine."""
        del self._silent[sock]
        if len(self.greeted) >= max(MAX_GREETED, 2 * len(self._mine.expected)):
            self._drop(secrets.choice(self.greeted), "too many others came")
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
            old = self.open.pop(rank, None)  # a caller that lost its first connection calls again
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
                if self.wrong[rank] == _WRONG_PROOFS:
                    log.warning("no link to rank %d: %s", rank, why)
            else:
                self.wrong.pop(rank, None)
        else:
            self._refused += 1
            if self._refused == 1:  # and no more: they may be many
                log.warning("refused a connection from %s to the links of this job's hosts: %s", _peer(sock), why)
        pending.steps.close()
        sock.close()

    def close(self) -> None:
        """Drop a handshake that is not complete."""
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
    """Open a link to each of the given ranks; the listener stays open.

    Parameters
    ----------
    listener : Listener
        Of this process.
    rank : int
        Of this process.
    data_key : bytes
        The same on all hosts; empty if data are not encrypted.
    calls : mapping of int to Address
        The addresses of the ranks that this one connects to.
    expected : frozenset of int
        The ranks that connect to this one.
    deadline : float
        By `awake`.
    give_up : callable
        ``give_up(ranks)`` is called several times a second with the missing ranks; it raises if waiting for them is
        pointless.

    Raises
    ------
    PlatoonError
        If a rank did not come by then, or what listens at its address cannot prove that it is this rank.
    """
    opening = Opening(listener, Caller(rank, data_key, expected), calls)
    asks_at, warns_at = 0.0, awake() + WARNING_S
    try:
        while opening.missing:
            now = awake()
            if now >= min(deadline, warns_at):
                who = f"rank {rank} has no link to the ranks {opening.missing} of other hosts"
                why = (
                    f"{opening.why()}: do the hosts reach each other at all ports (firewalls), by the addresses that "
                    "they were given?"
                )
                if now >= deadline:
                    raise PlatoonError(f"{who} in time{why}")
                warns_at = math.inf
                log.warning("%s so far%s", who, why)
            wrong = [rank for rank, count in opening.wrong.items() if count >= _WRONG_PROOFS]
            if wrong:
                raise PlatoonError(f"rank {rank} has no link to the ranks {wrong} of other hosts{opening.why(wrong)}")
            if now >= asks_at:  # not at each connection of a flood
                asks_at = now + _POLL_INTERVAL_S
                give_up(opening.missing)
            opening.step(min(deadline, asks_at))
        return opening.open
    except BaseException:
        for stream in opening.open.values():
            stream.close()
        raise
    finally:
        opening.close()
