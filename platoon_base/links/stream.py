"""A TCP connection between two processes on different hosts, which carries arrays in records.

No call blocks: `push` sends what fits into the socket's buffer, `pull` receives what has arrived,
and the caller polls.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections import deque
from typing import Any, Callable, Protocol

from platoon_base.errors import BackendUnavailableError

MAX_PAYLOAD_BYTES = 1 << 18  # Bytes of a record.
_HEADER = struct.Struct("<IIQ")
_AT_ONCE = 1 << 16  # Bytes to request between records: many small ones may have arrived.
_DIRECT = 1 << 14  # Bytes from which an unencrypted payload is received in place, without a copy.
_BURST = 16  # Number of reads to drain a connection before it is closed.
_IDLE_S = 30
_TCP_INFO = struct.Struct("=2xB21xI28xI")  # tcpi_retransmits, tcpi_unacked and tcpi_last_ack_recv.
_RTO_MAX_MS = getattr(socket, "TCP_RTO_MAX_MS", 44)
_MAX_SILENCE_MS = 24 * 3600 * 1000


class BrokenStreamError(Exception):
    """The connection is broken.

    ``altered``: data were changed, repeated or injected. ``ended``: the other side closed the
    connection in order, as the system does when its process ends.
    """

    def __init__(self, text: str, altered: bool = False, ended: bool = False) -> None:
        super().__init__(text)
        self.altered, self.ended = altered, ended


class Receiver(Protocol):
    """Receives the records of a `Stream`."""

    def place(self, tag: int, offset: int, length: int) -> memoryview | None:
        """Return a buffer; None postpones this and later records. Raises `BrokenStreamError`."""
        ...

    def done(self, tag: int, offset: int, length: int) -> None:
        """Handle a record with a payload in the buffer that `place` returned."""
        ...


def tune(sock: socket.socket) -> None:
    """Set socket options: send small records immediately, and survive a network interruption."""
    # Other code decides whether the peer is lost, so the connection times out after a day. Without
    # acknowledgements, Linux 6.15 and later retransmit at least every second; older systems double
    # the interval.
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A router may otherwise drop an idle connection.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    for option, value in ((getattr(socket, "TCP_USER_TIMEOUT", None), _MAX_SILENCE_MS), (_RTO_MAX_MS, 1000)):
        if option is not None:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            except OSError:  # The system is older.
                pass


class Stream:
    """Records over one connection: a tag, an offset and a payload of up to `MAX_PAYLOAD_BYTES`.

    This object owns ``sock``. ``sends`` and ``receives`` are both None without encryption.
    ``posted`` counts records given to `post`, ``sent`` those that the system has accepted.
    ``held``: a record waits for `Receiver.place`. ``torn``: an exception such as Ctrl-C interrupted
    a push, so further data would be unreadable.
    """

    def __init__(self, sock: socket.socket, sends: Cipher | None, receives: Cipher | None) -> None:
        tune(sock)
        self._sock = sock
        self._sends, self._receives = sends, receives
        self._queue: deque[tuple[bytes, memoryview | bytes]] = deque()
        self._out: list[memoryview] = []  # Rest of the record that is being sent.
        # Both buffers grow to the largest record.
        self._sealed = memoryview(bytearray())
        self._in = memoryview(bytearray(_AT_ONCE))
        self._start = self._stop = 0  # Bounds of received bytes that are not consumed.
        self._record: tuple[int, int, int] | None = None  # Tag, offset and length of the payload.
        self._direct: memoryview | None = None  # The rest of a payload that is received in place.
        self.posted = self.sent = 0
        self.held = self.torn = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def post(self, tag: int, offset: int, payload: memoryview | bytes) -> None:
        """Queue a record. Its memory must not change until the record is sent; see `sent`."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"got a record of {len(payload)} bytes: at most {MAX_PAYLOAD_BYTES} are allowed")
        self._queue.append((_HEADER.pack(len(payload), tag, offset), payload))
        self.posted += 1

    def drop_queue(self) -> None:
        """Drop the queued records, but not one that is partly sent."""
        self.posted -= len(self._queue)
        self._queue.clear()

    def unanswered_s(self) -> float:
        """Return the seconds without acknowledgement of retransmitted data; 0 if there are none."""
        # The system of the other host acknowledges data even while its process is busy or stopped.
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:
            return 0.0
        retransmits, unacknowledged, since_ms = _TCP_INFO.unpack(info)
        return float(since_ms) / 1e3 if retransmits and unacknowledged else 0.0

    def push(self) -> bool:
        """Send without blocking; return whether anything was sent. Raises `BrokenStreamError`."""
        if self.sent == self.posted or self.torn:
            return False
        moved, self.torn = False, True
        while self._out or self._queue:
            if not self._out:
                self._out = self._next()
            try:
                count = self._sock.send(self._out[0]) if len(self._out) == 1 else self._sock.sendmsg(self._out)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as exc:
                raise BrokenStreamError(str(exc)) from exc
            moved = True
            while self._out and count >= len(self._out[0]):
                count -= len(self._out.pop(0))
            if self._out:
                self._out[0] = self._out[0][count:]
            else:
                self.sent += 1
        self.torn = False
        return moved

    def _next(self) -> list[memoryview]:
        header, payload = self._queue.popleft()
        if self._sends is None:
            return [memoryview(header), memoryview(payload)] if len(payload) else [memoryview(header)]
        start, stop = len(header), len(header) + len(payload) + TAG_BYTES
        if stop > len(self._sealed):
            self._sealed = memoryview(bytearray(stop))
        self._sealed[:start] = header
        self._sends.seal(header, payload, self._sealed[start:stop])
        return [self._sealed[:stop]]

    def pull(self, receiver: Receiver, most: int = 16) -> bool:
        """Receive up to ``most`` records; return whether data arrived. Raises as `push` does."""
        moved = False
        for _ in range(most):
            while not self._take(receiver):
                if self.held:
                    return moved
                if not self._receive():
                    return moved
                moved = True
        return True

    def _receive(self) -> bool:
        if self._direct is not None:
            target = self._direct
        else:
            if self._start == self._stop:
                self._start = self._stop = 0
            end = self._stop + _AT_ONCE
            # Include the next header, but nothing that would have to be moved later.
            if self._record is not None:
                end = self._start + self._record[2] + (TAG_BYTES if self._receives else 0) + _HEADER.size
            if end > len(self._in):
                kept = bytes(self._in[self._start : self._stop])
                end, self._start, self._stop = end - self._start, 0, len(kept)
                if end > len(self._in):
                    self._in = memoryview(bytearray(end + _AT_ONCE))
                self._in[: len(kept)] = kept
            target = self._in[self._stop : end]
        try:
            count = self._sock.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as exc:
            raise BrokenStreamError(str(exc)) from exc
        if count == 0:
            raise BrokenStreamError("the other side has closed it", ended=True)
        if self._direct is not None:
            self._direct = target[count:]
        else:
            self._stop += count
        return True

    def _take(self, receiver: Receiver) -> bool:
        """Pass the next record to the receiver; False if it is incomplete or held."""
        if self._record is None:
            if self._stop - self._start < _HEADER.size:
                return False
            length, tag, offset = _HEADER.unpack_from(self._in, self._start)
            if length > MAX_PAYLOAD_BYTES:
                raise BrokenStreamError(
                    f"got a record of {length} bytes; {MAX_PAYLOAD_BYTES} are allowed", altered=True
                )
            self._record = tag, offset, length
            self._header = bytes(self._in[self._start : self._start + _HEADER.size])
            self._start += _HEADER.size
        tag, offset, length = self._record
        whole = length + (TAG_BYTES if self._receives else 0)
        have = self._stop - self._start
        if self._direct is None:
            if have < whole and (self._receives is not None or length < _DIRECT):
                return False
            place = receiver.place(tag, offset, length)
            self.held = place is None
            if place is None:
                return False
            content = self._in[self._start : self._start + min(have, whole)]
            self._start += len(content)
            if self._receives is not None:
                try:
                    self._receives.open(self._header, content, place)
                except AlteredError:
                    raise BrokenStreamError("a record was changed in transit, or repeated", altered=True) from None
            else:
                place[: len(content)] = content
                self._direct = place[len(content) :]
        if self._direct is not None:
            if len(self._direct):
                return False
            self._direct = None
        self._record = None
        receiver.done(tag, offset, length)
        return True

    def close(self) -> None:
        """Close the connection; may be called again. The system still sends buffered data."""
        try:
            # Otherwise the system would reset the connection, and the other side would lose the
            # last data.
            for _ in range(_BURST):
                if not self._sock.recv_into(self._in):
                    break
        except OSError:
            pass
        self._sock.close()
        self._queue.clear()
        self._out, self._direct = [], None


TAG_BYTES = 16  # Bytes after each encrypted record.
_KEY_BYTES = 32
_LABEL = b"platoon data between hosts, version 1"


class AlteredError(Exception):
    """A record is not the peer's next one: it was changed, repeated, left out or forged."""


class Cipher:
    """Encrypts or decrypts the records of one direction of one connection, in order.

    The number of a record is its nonce, so repeated, missing or reordered records are refused like
    changed ones. Never encrypt with two ciphers of the same key. The key has 32 bytes. ``in_place``
    encrypts into the caller's memory if ``cryptography`` is version 47 or later.
    """

    def __init__(self, key: bytes, in_place: bool = True) -> None:
        self._aead: Any = require_cipher()(key)
        self._number = 0
        there = self._aead if in_place else None
        self._encrypt_into: Callable[..., Any] | None = getattr(there, "encrypt_into", None)
        self._decrypt_into: Callable[..., Any] | None = getattr(there, "decrypt_into", None)

    def _nonce(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "big")

    def seal(self, header: bytes, payload: memoryview | bytes, out: memoryview) -> None:
        """Encrypt a payload into ``out``, which has `TAG_BYTES` more; authenticate the header."""
        if self._encrypt_into is None:
            out[:] = self._aead.encrypt(self._nonce(), payload, header)
        else:
            self._encrypt_into(self._nonce(), payload, header, out)

    def open(self, header: bytes, sealed: memoryview, out: memoryview) -> None:
        """Decrypt into ``out``, which has `TAG_BYTES` less; raises `AlteredError`."""
        from cryptography.exceptions import InvalidTag

        try:
            if self._decrypt_into is None or not len(out):
                out[:] = self._aead.decrypt(self._nonce(), sealed, header)
            else:
                self._decrypt_into(self._nonce(), sealed, header, out)
        except InvalidTag:
            raise AlteredError from None


class KeyExchange:
    """A key for one connection (X25519): who learns the job's key later cannot decrypt it."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._own = X25519PrivateKey.generate()
        self.public: bytes = self._own.public_key().public_bytes_raw()

    def shared(self, public: bytes) -> bytes:
        """Return the secret shared with the owner of another key; raises `ValueError`."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        return self._own.exchange(X25519PublicKey.from_public_bytes(public))


def require_cipher() -> Any:
    """Return the class that encrypts; raises `BackendUnavailableError` if it is not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise BackendUnavailableError(
            "messages between hosts are encrypted, which needs the package cryptography, and it "
            f'cannot be imported ({exc}): pip install "platoon-plugins[hosts]" on every host'
        ) from exc
    return AESGCM


def derive_keys(secret: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    """Derive keys by HKDF-SHA256: for data from the caller and from the listener."""
    pseudorandom = hmac.new(transcript, secret, hashlib.sha256).digest()
    first = hmac.new(pseudorandom, _LABEL + b"\1", hashlib.sha256).digest()
    second = hmac.new(pseudorandom, first + _LABEL + b"\2", hashlib.sha256).digest()
    return first[:_KEY_BYTES], second[:_KEY_BYTES]
