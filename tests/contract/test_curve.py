"""The control channel over TCP: who has the job's keys is answered, who has not reaches nothing.

Real sockets on 127.0.0.1. Strangers are proved to be refused by what libzmq reports of their handshake, or by the end
of their connection, while a worker with the job's keys goes on.
"""

import contextlib
import json
import os
import selectors
import socket
import struct
import threading
from contextlib import closing

import msgspec
import numpy as np
import pytest
import zmq
from scripts_here import script_path
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from platoon_base.channels import keys as keys_module
from platoon_base.channels.keys import Keys, ServerKeys, ZapHandler, new_keys
from platoon_base.channels.zmq import ZmqClient, ZmqServer
from platoon_base.errors import (
    BackendUnavailableError,
    CollectiveTimeoutError,
    ConfigurationError,
    ProtocolError,
    WorkerLostError,
)
from platoon_base.job import JobOptions, host_job

pytestmark = pytest.mark.base

TIMEOUT_S = 30
HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Echo:
    """A server thread that answers what it gets, reversed, and remembers all that reached it."""

    def __init__(self, server):
        self.address = server.address
        self.seen = []
        self._stop, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, args=(server,))
        self._thread.start()

    def _serve(self, server):
        ready = set()
        while not ready:
            received, ready = server.wait(TIMEOUT_S, [self._stop])
            for one in received:
                self.seen.append(one.data)
                server.reply(one.peer, one.request_id, one.data[::-1])
        server.close()

    def close(self):
        os.write(self._wake, b"x")
        self._thread.join()
        os.close(self._stop)
        os.close(self._wake)


class Job:
    """A server, its keys, and a worker whose every answer is checked."""

    def __init__(self):
        self.server_keys, self.keys = new_keys()
        self.echo = Echo(ZmqServer("tcp://127.0.0.1:*", self.server_keys))
        self.address = self.echo.address
        self.host_port = ("127.0.0.1", int(self.address.rpartition(":")[2]))
        self.worker = ZmqClient(self.address, lambda: True, self.keys)
        self.asked = []

    def require_undisturbed(self):
        """The worker is answered, and nothing but its requests has reached the server."""
        data = b"request %d of the worker" % len(self.asked)
        self.asked.append(data)
        assert self.worker.request(data, TIMEOUT_S) == data[::-1]
        assert self.echo.seen == self.asked

    def close(self):
        self.worker.close()
        self.echo.close()


@pytest.fixture
def job():
    made = Job()
    yield made
    made.close()


class Strangers:
    """Sockets that the job does not know."""

    def __init__(self):
        self._context = zmq.Context()
        self._sockets = []

    def socket(self, kind):
        made = self._context.socket(kind)
        made.linger = 0
        self._sockets.append(made)
        return made

    def knock(self, address, options):
        """Connect and send what looks like a request; returns the monitor of the handshake."""
        stranger = self.socket(zmq.DEALER)
        for name, value in options.items():
            setattr(stranger, name, value)
        monitor = stranger.get_monitor_socket(HANDSHAKE_FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        stranger.connect(address)
        with contextlib.suppress(zmq.Again):  # refused already
            stranger.send(b"12345678from a stranger", zmq.NOBLOCK)
        return monitor

    def close(self):
        for made in self._sockets:
            made.close()
        self._context.destroy(linger=0)


@pytest.fixture
def strangers():
    made = Strangers()
    yield made
    made.close()


def curve(keys, **replaced):
    keys = msgspec.structs.replace(keys, **replaced)
    return {
        "curve_serverkey": keys.server_public.encode(),
        "curve_publickey": keys.client_public.encode(),
        "curve_secretkey": keys.client_secret.encode(),
    }


def fresh_pair():
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return {"client_public": public, "client_secret": secret}


def admitted(monitor):
    """Wait for the end of the handshake and tell how it went."""
    assert monitor.poll(TIMEOUT_S * 1000), "the handshake has not ended"
    return recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED


def send(connection, data):
    """Send bytes to a server that may hang up before the end."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)


def end(connection):
    """Tell the server that nothing more will come."""
    with contextlib.suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_WR)


def require_closed(connection):
    """Wait until the server has ended a TCP connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass


def test_a_worker_with_the_jobs_keys_is_answered(job, strangers):
    for _ in range(3):
        job.require_undisturbed()
    assert admitted(strangers.knock(job.address, curve(job.keys)))  # so what strangers do would be enough


STRANGERS = {
    "no keys": lambda keys: {},
    "keys of their own": lambda keys: curve(keys, **fresh_pair()),
    "another server's key": lambda keys: curve(keys, server_public=fresh_pair()["client_public"]),
    "the job's public keys only": lambda keys: curve(keys, client_secret=fresh_pair()["client_secret"]),
    "the server's public key as their own": lambda keys: curve(keys, client_public=keys.server_public),
}


def test_strangers_are_refused(job, strangers):
    job.require_undisturbed()
    for who, options in STRANGERS.items():
        assert not admitted(strangers.knock(job.address, options(job.keys))), who
        job.require_undisturbed()


def greeting(mechanism, minor=1):
    """The first 64 bytes of ZMTP 3.x."""
    return b"\xff" + b"\0" * 7 + b"\1\x7f" + bytes([3, minor]) + mechanism.ljust(20, b"\0") + b"\0" * 32


def command(name, body):
    body = bytes([len(name)]) + name + body
    return b"\x06" + struct.pack(">Q", len(body)) + body


READY = command(b"READY", b"\x0bSocket-Type\0\0\0\6DEALER")
REQUEST = b"12345678from a stranger"
MESSAGE = b"\0" + bytes([len(REQUEST)]) + REQUEST
RAW = {
    "nothing": b"",
    "http": b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xab" * 506,
    "zeros": b"\0" * 10_000,
    "ones": b"\xff" * 10_000,
    "half a greeting": greeting(b"CURVE")[:11],
    "a greeting": greeting(b"CURVE"),
    "zmtp 1": b"\1\0" + bytes([len(REQUEST) + 1, 0]) + REQUEST,
    "zmtp 2": b"\xff" + b"\0" * 7 + b"\1\x7f\1\5\0\0" + MESSAGE,
    "null": greeting(b"NULL") + READY + MESSAGE,
    "null 3.0": greeting(b"NULL", 0) + READY + MESSAGE,
    "a curve server": greeting(b"CURVE")[:32] + b"\1" + greeting(b"CURVE")[33:],
    "a curve without handshake": greeting(b"CURVE") + READY + MESSAGE,
    "a message instead of a hello": greeting(b"CURVE") + MESSAGE,
    "a message instead of an initiate": greeting(b"CURVE") + command(b"MESSAGE", b"\0" * 8 + REQUEST),
    "a hello of zeros": greeting(b"CURVE") + command(b"HELLO", b"\1\0" + b"\0" * 192),
    "an initiate of zeros": greeting(b"CURVE") + command(b"INITIATE", b"\0" * 248),
    "a command of 8 EiB": greeting(b"CURVE") + b"\x06" + b"\x7f" + b"\xff" * 7,
    **{f"random {seed}": np.random.default_rng(seed).bytes(5000) for seed in range(2)},
    **{f"greeting, random {seed}": greeting(b"CURVE") + np.random.default_rng(seed).bytes(5000) for seed in range(2)},
}


def test_bytes_of_any_kind_are_shut_out(job):
    for data in RAW.values():
        job.require_undisturbed()
        with socket.create_connection(job.host_port, TIMEOUT_S) as stranger:
            send(stranger, data)
            job.require_undisturbed()
            end(stranger)
            require_closed(stranger)
    job.require_undisturbed()


def test_who_does_not_finish_the_handshake_is_disconnected(monkeypatch):
    monkeypatch.setattr(keys_module, "timeout", {"handshake": 0.2}.get)
    with closing(Job()) as job:
        for data in (b"", greeting(b"CURVE")[:20], greeting(b"CURVE")):
            with socket.create_connection(job.host_port, TIMEOUT_S) as silent:
                send(silent, data)
                require_closed(silent)
        job.require_undisturbed()


def test_200_strangers_at_once_do_not_stop_the_worker(job, strangers):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(job.host_port, TIMEOUT_S)) for _ in range(100)]
        monitors = [strangers.knock(job.address, curve(job.keys, **fresh_pair())) for _ in range(100)]
        job.require_undisturbed()
        for connection in silent:
            send(connection, greeting(b"CURVE"))
        with closing(ZmqClient(job.address, lambda: True, job.keys)) as newcomer:
            job.asked.append(b"abc")
            assert newcomer.request(b"abc", TIMEOUT_S) == b"cba"
        assert not any(map(admitted, monitors))
        job.require_undisturbed()


def test_without_its_doorkeeper_a_server_lets_nobody_in(strangers):
    server_keys, keys = new_keys()
    with closing(ZmqServer("tcp://127.0.0.1:*", server_keys)) as server:
        server.zap_handler.close()
        assert not admitted(strangers.knock(server.address, curve(keys)))


@pytest.mark.parametrize(
    ("mechanism", "copies"), [(b"NULL", 0), (b"PLAIN", 2), (b"GSSAPI", 1), (b"CURVE", 0), (b"CURVE", 2)]
)
def test_the_doorkeeper_refuses_what_libzmq_should_not_ask(mechanism, copies):
    server_keys, keys = new_keys()
    credentials = [z85.decode(keys.client_public)] * copies
    with zmq.Context() as context, closing(ZapHandler(context, server_keys.clients)) as zap_handler:
        asking = context.socket(zmq.REQ)
        with closing(asking):
            asking.linger = 0
            asking.connect("inproc://zeromq.zap.01")
            asking.send_multipart([b"1.0", b"7", b"platoon", b"127.0.0.1", b"", mechanism, *credentials])
            zap_handler.answer()
            assert asking.poll(TIMEOUT_S * 1000)
            assert asking.recv_multipart()[:3] == [b"1.0", b"7", b"400"]


def test_a_refused_worker_is_told_so_and_does_not_hang(job):
    keys = msgspec.structs.replace(job.keys, **fresh_pair())
    with closing(ZmqClient(job.address, lambda: True, keys)) as other:
        for _ in range(3):  # the first may be sent before the refusal; later ones have no connection to be sent on
            with pytest.raises(ProtocolError, match="refused"):
                other.request(b"from a stranger", TIMEOUT_S)
    job.require_undisturbed()


def test_a_worker_of_another_job_waits_until_its_deadline(job):
    other = ZmqClient(job.address, lambda: True, new_keys()[1])
    with closing(other), pytest.raises(CollectiveTimeoutError, match="keys of another job"):
        other.request(b"from a stranger", 0.5)
    job.require_undisturbed()


def test_a_worker_whose_messages_nobody_fetches_does_not_hang_in_sending(tmp_path):
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        room = plain.sndhwm
    alive = True
    with closing(ZmqClient(f"ipc://{tmp_path}/control", lambda: alive)) as client:  # where nobody listens
        for _ in range(room + 1):
            with pytest.raises(CollectiveTimeoutError):
                client.request(b"", 0.0)
        alive = False
        with pytest.raises(WorkerLostError):
            client.request(b"", TIMEOUT_S)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://0.0.0.0:5555", "TCP://localhost:1", "ws://*:80", "x"])
def test_without_keys_only_ipc(address):
    with pytest.raises(ConfigurationError, match="without keys.*Pass the keys"):
        ZmqServer(address)
    with pytest.raises(ConfigurationError, match="without keys.*Pass the keys"):
        ZmqClient(address, lambda: True)


def test_an_address_that_cannot_be_used_is_named(job):
    with pytest.raises(ConfigurationError, match=r"cannot listen at 'tcp://127.*in use.*another"):
        ZmqServer(job.address, job.server_keys)
    for address in ("tcp://127.0.0.1", "nonsense://x"):
        with pytest.raises(ConfigurationError, match="cannot listen"):
            ZmqServer(address, job.server_keys)
        with pytest.raises(ConfigurationError, match="cannot connect"):
            ZmqClient(address, lambda: True, job.keys)
    with pytest.raises(ConfigurationError, match="cannot listen"):
        ZmqServer("tcp://127.0.0.1:*", ServerKeys("not a key", frozenset()))


def test_a_closed_server_leaves_no_port_and_may_be_closed_again():
    server_keys, keys = new_keys()
    with closing(ZmqServer("tcp://127.0.0.1:*", server_keys)) as server:
        host_port = ("127.0.0.1", int(server.address.rpartition(":")[2]))
        # Both are in the middle of their handshakes: one waits for the zap_handler, one is waited for.
        worker = ZmqClient(server.address, lambda: True, keys)
        with closing(worker), socket.create_connection(host_port, TIMEOUT_S) as stranger:
            assert server.zap_handler.socket.poll(TIMEOUT_S * 1000)
            server.close()
            require_closed(stranger)
    with closing(ZmqServer(server.address, server_keys)) as again:
        assert again.address == server.address


def test_keys_over_ipc_are_checked_too(tmp_path, strangers):
    server_keys, keys = new_keys()
    with closing(Echo(ZmqServer(f"ipc://{tmp_path}/control", server_keys))) as echo:
        with closing(ZmqClient(echo.address, lambda: True, keys)) as worker:
            assert worker.request(b"abc", TIMEOUT_S) == b"cba"
        assert not admitted(strangers.knock(echo.address, {}))
    assert echo.seen == [b"abc"]


class Tap:
    """A TCP relay that keeps what passes, by direction."""

    def __init__(self, target):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.to_server, self.to_client = bytearray(), bytearray()
        self._thread = threading.Thread(target=self._relay, args=(target,))
        self._thread.start()

    def _relay(self, target):
        with self._listener:
            client, _ = self._listener.accept()
        with client, socket.create_connection(target, TIMEOUT_S) as server, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, (server, self.to_server))
            selector.register(server, selectors.EVENT_READ, (client, self.to_client))
            while True:
                for key, _ in selector.select(TIMEOUT_S) or pytest.fail("nothing passes"):
                    other, heard = key.data
                    try:
                        data = key.fileobj.recv(1 << 16)
                        other.sendall(data)
                    except ConnectionError:
                        return
                    if not data:
                        return
                    heard += data

    def join(self):
        """Wait until one side has hung up."""
        self._thread.join()


SECRET = b"the loss of the third epoch is 0.125; " * 30


def test_what_is_on_the_wire_cannot_be_read_or_played_again(job):
    tap = Tap(job.host_port)
    with closing(ZmqClient(tap.address, lambda: True, job.keys)) as worker:
        job.asked.append(SECRET)
        assert worker.request(SECRET, TIMEOUT_S) == SECRET[::-1]
    tap.join()
    heard = bytes(tap.to_server), bytes(tap.to_client)
    assert min(map(len, heard)) > len(SECRET)
    for text in (SECRET[:16], SECRET[:16][::-1], job.keys.client_secret.encode(), job.server_keys.secret.encode()):
        assert not any(text in direction for direction in heard)

    with socket.create_connection(job.host_port, TIMEOUT_S) as stranger:
        send(stranger, heard[0])
        end(stranger)
        require_closed(stranger)
    job.require_undisturbed()


def test_keys_are_new_each_time_and_neither_printed_nor_in_what_workers_get():
    (server_keys, keys), (other_server_keys, other_keys) = new_keys(), new_keys()
    assert server_keys.clients == {keys.client_public}
    all_keys = [server_keys.secret, keys.client_secret, other_server_keys.secret, other_keys.client_secret]
    assert len(set(all_keys)) == 4
    encoded = msgspec.json.encode(keys)
    assert msgspec.json.decode(encoded, type=Keys) == keys
    assert set(json.loads(encoded)) == {"server_public", "client_public", "client_secret"}
    assert server_keys.secret not in encoded.decode()
    assert zmq.curve_public(server_keys.secret.encode()).decode() == keys.server_public
    assert zmq.curve_public(keys.client_secret.encode()).decode() == keys.client_public
    for text in (repr(server_keys), str(server_keys), repr(keys), str(keys), f"{keys}"):
        assert server_keys.secret not in text
        assert keys.client_secret not in text


@pytest.mark.parametrize("length", [0, 39, 41])
def test_keys_of_a_wrong_length_are_not_read(length):
    fields = msgspec.to_builtins(new_keys()[1])
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**fields, "client_secret": "x" * length}, Keys)


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [("has", lambda name: False, "without it.*pip install"), ("zmq_version_info", lambda: (4, 3, 2), "4.3.3")],
)
def test_a_libzmq_that_cannot_encrypt_or_is_old_is_reported(monkeypatch, name, answer, message):
    monkeypatch.setattr(keys_module.zmq, name, answer)
    with pytest.raises(BackendUnavailableError, match=message):
        new_keys()


def test_a_whole_job_over_tcp_keeps_strangers_out(run_job):
    script = script_path("curve_a_whole_job_over_tcp_keeps_strangers_out")
    run_job(script, 3, listen="tcp://127.0.0.1:*").require_success()


def test_a_job_does_not_listen_everywhere_without_keys():
    with pytest.raises(ConfigurationError), host_job(1, JobOptions(listen="udp://127.0.0.1:1")):
        pass
