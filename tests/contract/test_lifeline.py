"""Connections by which the end of a process is noticed: ends, resets, and strangers."""

import contextlib
import ctypes
import os
import select
import signal
import socket
import time

import pytest

from platoon_base.channels.host_peer import NO_PEER, Frame, Peer
from platoon_base.channels.lifeline import Lifeline, Lifelines
from platoon_base.links.handshake import MAX_GREETED, MAX_PENDING, Address
from platoon_base.system.process import awake

pytestmark = pytest.mark.base

SESSION = bytes(range(16))
HERE = "127.0.0.1"


def new_peer():
    return Peer(SESSION, NO_PEER, lambda data: None)


class Ends:
    """Both ends, and the peers in whom they note what they notice."""

    def __init__(self):
        self.client_there = new_peer()
        self.server = Lifelines(HERE, {SESSION: self.client_there})
        self.server_there = new_peer()
        self.clients = []

    def connect(self, port=None):
        self.clients.append(Lifeline(Address(HERE, port or self.server.port, self.server.token), self.server_there))
        return self.clients[-1]

    def step(self):
        self.server.step()
        for client in self.clients:
            client.step()
        time.sleep(0.001)

    def until(self, condition):
        deadline = awake() + 20
        while not condition():
            assert awake() < deadline
            self.step()

    @property
    def known(self):
        """How many connections the server has, besides that it listens with."""
        return len(self.server.fds) - 1

    def close(self):
        self.server.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def ends():
    found = Ends()
    yield found
    found.close()


def connected(ends):
    client = ends.connect()
    ends.until(lambda: ends.client_there.has_lifeline and ends.server_there.has_lifeline)
    for _ in range(20):
        ends.step()
    assert not ends.client_there.gone
    assert not ends.server_there.gone
    return client


def test_the_server_notices_that_a_client_has_ended(ends):
    connected(ends).close()
    ends.clients.clear()
    ends.until(lambda: ends.client_there.gone)
    assert not ends.server_there.gone
    ends.until(lambda: ends.client_there.closed(awake()))


def test_a_client_notices_that_the_server_has_ended(ends):
    connected(ends)
    ends.server.close()
    ends.until(lambda: ends.server_there.gone)
    ends.until(lambda: ends.server_there.closed(awake()))


def test_who_is_heard_of_later_has_not_ended(ends):
    """Something on the way may close a connection that is idle."""
    peer = new_peer()
    peer.has_lifeline = True
    peer.ended(awake() - 0.9)
    assert not peer.closed(awake())
    peer.take(Frame(SESSION, NO_PEER, 0, 0))
    assert not peer.closed(awake() + 60)


def test_a_killed_process_is_noticed(ends):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover
        peer = new_peer()
        client = Lifeline(Address(HERE, ends.server.port, ends.server.token), peer)
        deadline = awake() + 60
        while awake() < deadline:
            client.step()
            if peer.has_lifeline:  # it has read all: if it were killed earlier, its system would reset the connection
                os.write(writes, b"x")
                signal.pause()
            time.sleep(0.001)
        os._exit(1)
    try:
        ends.until(lambda: ends.client_there.has_lifeline and select.select([reads], [], [], 0)[0])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
        os.close(writes)
    ends.until(lambda: ends.client_there.gone)


def test_a_reset_is_no_end_and_the_connection_comes_back(ends):
    client = connected(ends)
    (fd,) = client.fds
    ctypes.CDLL(None).connect(fd, bytes(16), 16)  # to no address: the system resets the connection
    ends.until(lambda: fd not in client.fds or ends.known == 0)
    ends.until(lambda: client.fds and ends.known == 1)
    assert not ends.client_there.gone
    assert not ends.server_there.gone


def test_a_port_that_refuses_is_none_and_one_with_another_token_is_none_either(ends):
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
    client = ends.connect(port)
    for _ in range(50):
        ends.step()
    assert not client.fds
    with contextlib.closing(Ends()) as others:
        client = ends.connect(others.server.port)  # which has another token
        for _ in range(50):
            others.step()
            ends.step()
        assert not client.fds


class Eavesdropper:
    """A connection through this process, which hears all that passes before the lifeline is known."""

    def __init__(self, port):
        self.listener = socket.create_server((HERE, 0))
        self.port, self.heard = port, []

    def pass_on(self, ends):
        ends.step()  # it connects
        near, _ = self.listener.accept()
        far = socket.create_connection((HERE, self.port))
        for sock in (near, far):
            sock.setblocking(False)
        while not ends.client_there.has_lifeline or not ends.server_there.has_lifeline:
            ends.step()
            for source, target in ((near, far), (far, near)):
                with contextlib.suppress(BlockingIOError):
                    data = source.recv(4096)
                    target.sendall(data)
                    if source is near:
                        self.heard.append(data)
        return near, far


def test_who_has_heard_all_that_passed_holds_no_connection_and_ends_no_host(ends):
    """Nothing secret passes: what was heard opens no second lifeline, however often it is repeated."""
    eavesdropper = Eavesdropper(ends.server.port)
    ends.connect(eavesdropper.listener.getsockname()[1])
    kept = eavesdropper.pass_on(ends)
    copies = []
    for _ in range(MAX_PENDING + 50):
        copies.append(socket.create_connection((HERE, ends.server.port)))
        copies[-1].sendall(b"".join(eavesdropper.heard))
        ends.step()
    for _ in range(50):
        ends.step()
    assert ends.known == 1
    for copy in copies:
        copy.close()
    for _ in range(50):
        ends.step()
    assert not ends.client_there.gone
    for sock in (*kept, eavesdropper.listener):
        sock.close()


def test_strangers_are_dropped_and_end_nothing(ends):
    connected(ends)
    before = len(os.listdir("/proc/self/fd"))
    count = MAX_PENDING + MAX_GREETED + 20
    strangers = []
    try:
        for index in range(count):
            strangers.append(stranger := socket.create_connection((HERE, ends.server.port)))
            stranger.sendall(os.urandom(100) if index % 2 else SESSION[:7])
            ends.step()
        for _ in range(50):
            ends.step()
        assert len(os.listdir("/proc/self/fd")) <= before + count + MAX_PENDING + MAX_GREETED
        assert ends.known == 1
    finally:
        for stranger in strangers:
            stranger.close()
    for _ in range(50):
        ends.step()
    assert not ends.client_there.gone


def test_without_a_port_nothing_is_tried(ends):
    client = Lifeline(Address(HERE, 0, b""), new_peer())
    client.step()
    assert client.fds == []
    client.close()
