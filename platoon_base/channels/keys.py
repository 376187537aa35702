"""The keys that admit workers to a job's controller over a network, and the check of connections.

These are elliptic-curve keys of CurveZMQ (https://rfc.zeromq.org/spec/26/). A job has two pairs:
one authenticates the controller, the other, which all workers share, authenticates the workers.
"""

from __future__ import annotations

import logging
from typing import Annotated, NamedTuple

import msgspec
import zmq
from zmq.utils import z85

from platoon_base.coordination.messages import MAX_BYTES
from platoon_base.errors import BackendUnavailableError
from platoon_base.timeouts import timeout

__all__ = ["Keys", "ServerKeys", "ZapHandler", "admit_only", "new_keys", "use_keys"]

log = logging.getLogger(__name__)

_ENDPOINT = "inproc://zeromq.zap.01"  # libzmq looks for an authenticator here, within a context.
_BATCH = 64  # Peers checked at once, so that requests, child processes and timers are served too.
# With older versions, any TCP connection could block the controller (CVE-2020-15166).
_OLDEST_LIBZMQ = (4, 3, 3)

# Connections that the kernel queues: those of all workers of a job, and of strangers.
_BACKLOG = 512
_ZAP_ENFORCE_DOMAIN = 93  # From zmq.h; older versions of pyzmq have no name for it.

_Key = Annotated[str, msgspec.Meta(min_length=40, max_length=40)]  # 32 bytes in z85.


class Keys(msgspec.Struct, frozen=True):
    """The keys of a worker for its controller, in z85; only the user may read them."""

    server_public: _Key
    client_public: _Key
    client_secret: _Key

    def __repr__(self) -> str:  # It may be logged.
        return f"Keys(server_public={self.server_public!r}, ...)"


class ServerKeys(NamedTuple):
    """The controller's secret key, and the public keys that it admits."""

    secret: str
    clients: frozenset[str]

    def __repr__(self) -> str:  # It may be logged.
        return f"ServerKeys(secret=..., clients={set(self.clients)!r})"


def new_keys() -> tuple[ServerKeys, Keys]:
    """Make the keys of a new job; raises `BackendUnavailableError` if libzmq is unsafe."""
    _require_curve()
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
    return ServerKeys(server_secret, frozenset([client_public])), Keys(server_public, client_public, client_secret)


def _require_curve() -> None:
    if not zmq.has("curve") or zmq.zmq_version_info() < _OLDEST_LIBZMQ:
        raise BackendUnavailableError(
            "jobs over a network need libzmq 4.3.3 or newer with CURVE, and this is "
            f"{zmq.zmq_version()} with{'' if zmq.has('curve') else 'out'} it: install pyzmq from "
            "its wheel, `pip install --force-reinstall --only-binary pyzmq pyzmq`"
        )


class ZapHandler:
    """Admits clients for libzmq (ZAP 27), in the thread that polls ``socket``."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], clients: frozenset[str]) -> None:
        self._clients = clients
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ENDPOINT)

    def answer(self) -> None:
        for _ in range(_BATCH):
            try:
                version, request_id, _, peer, _, mechanism, *credentials = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if mechanism == b"CURVE" and len(credentials) == 1 and z85.encode(credentials[0]).decode() in self._clients:
                status, text = b"200", b"OK"
            else:
                status, text = b"400", b"not a key of this job"
                log.warning("refused a connection from %s: it does not have this job's key", peer.decode())
            self.socket.send_multipart([version, request_id, status, text, b"", b""])

    def close(self) -> None:
        """Close the socket; then no client is admitted."""
        self.socket.close()


def use_keys(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Let a socket connect only to the controller of these keys, encrypted."""
    socket.curve_serverkey = keys.server_public.encode()
    socket.curve_publickey = keys.client_public.encode()
    socket.curve_secretkey = keys.client_secret.encode()


def admit_only(socket: zmq.Socket[bytes], context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys) -> ZapHandler:
    """Admit only clients with the job's keys to a socket; the caller must poll the `ZapHandler`."""
    socket.curve_server = True
    socket.curve_secretkey = keys.secret.encode()
    # libzmq requires a ZAP handler only for a named domain.
    socket.zap_domain = b"platoon"
    socket.setsockopt(_ZAP_ENFORCE_DOMAIN, 1)
    socket.handshake_ivl = int(timeout("handshake") * 1e3)
    socket.maxmsgsize = 2 * MAX_BYTES  # The limit also applies to strangers, and there may be many.
    socket.backlog = _BACKLOG
    return ZapHandler(context, keys.clients)
