"""Connections by which the end of a process is noticed: ends, resets, and strangers."""

import os
import signal
import socket
import struct
import time

import pytest

from platoon_base.channels.host_peer import NO_PEER, Frame, Peer
from platoon_base.channels.lifeline import MAX_UNIDENTIFIED, Lifeline, Lifelines
from platoon_base.system.awake import awake

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
        self.clients.append(Lifeline(HERE, port or self.server.port, self.server_there))
        return self.clients[-1]

    def step(self):
        self.server.step()
        for client in self.clients:
            client.step(awake())
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
    ready, is_ready = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover
        client = Lifeline(HERE, ends.server.port, new_peer())
        deadline = awake() + 30
        while awake() < deadline:
            client.step(awake())
            if client.fds:
                os.write(is_ready, b"x")
                time.sleep(30)
        os._exit(1)
    try:
        assert os.read(ready, 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(is_ready)
    ends.until(lambda: ends.client_there.gone)


def test_a_reset_is_no_end_and_the_connection_comes_back(ends):
    client = connected(ends)
    (fd,) = client.fds
    with socket.socket(fileno=os.dup(fd)) as same:  # the same connection, for one who resets it
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    ends.until(lambda: ends.known == 0)
    ends.until(lambda: client.fds and ends.known == 1)
    assert not ends.client_there.gone
    assert not ends.server_there.gone


def test_a_port_that_refuses_is_tried_again(ends):
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
    client = ends.connect(port)
    for _ in range(50):
        ends.step()
    assert not client.fds
    with socket.create_server((HERE, port)):
        ends.until(lambda: client.fds)


def test_strangers_are_dropped_and_end_nothing(ends):
    connected(ends)
    strangers = [socket.create_connection((HERE, ends.server.port)) for _ in range(MAX_UNIDENTIFIED + 20)]
    try:
        for index, stranger in enumerate(strangers):
            stranger.sendall(os.urandom(16) if index % 2 else SESSION[:7])
            ends.step()
        for _ in range(50):
            ends.step()
        assert ends.known <= 1 + MAX_UNIDENTIFIED
    finally:
        for stranger in strangers:
            stranger.close()
    ends.until(lambda: ends.known == 1 and ends.clients[0].fds)
    assert not ends.client_there.gone


def test_without_a_port_nothing_is_tried(ends):
    client = Lifeline(HERE, 0, new_peer())
    client.step(awake())
    assert client.fds == []
    client.close()
