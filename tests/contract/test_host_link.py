"""The link between the launchers of two hosts: each message once and in order; silence, ends and strangers."""

import contextlib
import os
import time

import pytest

from platoon_base.channels.host_link import SILENT_S, LinkClient, LinkServer
from platoon_base.channels.keys import keys_of_secret
from platoon_base.errors import ConfigurationError
from tests.helpers.breakable import Breakable

pytestmark = pytest.mark.base

SECRET = bytes(range(32))


class Pair:
    """Both ends, the client's way through `Breakable`, and what each has received."""

    def __init__(self, server, client, way):
        self.server, self.client, self.way = server, client, way
        self.at_server, self.at_client = [], []

    def step(self):
        self.client.poll(0.01)
        self.at_server += [body for _, body in self.server.receive()]
        self.at_client += self.client.receive()
        now = time.monotonic()
        self.server.tick(now)
        self.client.peer.tick(now)

    def until(self, condition, timeout_s=20):
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + timeout_s, (len(self.at_server), len(self.at_client))
            self.step()
        return time.monotonic() - began

    @property
    def peer(self):
        """The client, as the server sees it."""
        (peer,) = self.server.peers.values()
        return peer


@pytest.fixture
def pair():
    server_keys, keys = keys_of_secret(SECRET)
    with contextlib.ExitStack() as stack:
        server = LinkServer("tcp://127.0.0.1:*", server_keys)
        stack.callback(server.close)
        way = stack.enter_context(Breakable(int(server.address.rpartition(":")[2])))
        client = LinkClient(f"tcp://127.0.0.1:{way.port}", keys)
        stack.callback(client.close)
        made = Pair(server, client, way)
        client.peer.send(b"hello")
        made.until(lambda: made.at_server == [b"hello"])
        yield made


def numbered(count):
    return [b"%d" % i for i in range(count)]


def test_messages_arrive_once_and_in_order_both_ways(pair):
    for body in numbered(200):
        pair.client.peer.send(body)
        pair.peer.send(body)
    pair.until(lambda: len(pair.at_client) == 200 and len(pair.at_server) == 201)
    assert pair.at_client == numbered(200)
    assert pair.at_server[1:] == numbered(200)
    pair.until(lambda: not pair.peer.in_flight and not pair.client.peer.in_flight)


def test_what_was_under_way_on_a_broken_connection_arrives_once(pair):
    for body in numbered(500):
        pair.client.peer.send(body)
        pair.peer.send(body)
        if int(body) % 100 == 50:
            pair.step()
            pair.way.cut()
    pair.until(lambda: len(pair.at_client) >= 500 and len(pair.at_server) >= 501)
    assert pair.at_client == numbered(500)
    assert pair.at_server[1:] == numbered(500)


def test_a_cut_is_silence_and_loses_nothing(pair):
    pair.until(lambda: not pair.client.peer.in_flight)
    pair.way.passing.clear()
    seconds = pair.until(lambda: pair.peer.silent_s(time.monotonic()) > SILENT_S)
    assert seconds < 5
    pair.client.peer.send(b"meanwhile")
    pair.peer.send(b"meanwhile")
    pair.until(lambda: pair.peer.silent_s(time.monotonic()) > 4)
    assert not pair.peer.closed(time.monotonic())
    assert not pair.client.peer.closed(time.monotonic())
    pair.way.passing.set()
    pair.until(lambda: pair.at_client == [b"meanwhile"] and pair.at_server[1:] == [b"meanwhile"])


def test_the_end_of_a_process_is_noticed_at_once(pair):
    """The kernel closes the sockets of a process that is killed; here a forked child has them."""
    _server_keys, keys = keys_of_secret(SECRET)
    child = os.fork()
    if not child:  # pragma: no cover
        client = LinkClient(pair.server.address, keys)
        client.peer.send(b"child")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            client.poll(0.01)
            client.receive()
            client.peer.tick(time.monotonic())
        os._exit(1)
    try:
        pair.until(lambda: b"child" in pair.at_server)
        (peer,) = [peer for peer in pair.server.peers.values() if peer is not next(iter(pair.server.peers.values()))]
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    seconds = pair.until(lambda: peer.closed(time.monotonic()))
    assert seconds < 5
    assert not next(iter(pair.server.peers.values())).gone


def test_a_host_that_closes_is_noticed_and_may_come_back(pair):
    pair.way.cut()
    pair.until(lambda: pair.peer.gone)
    pair.until(lambda: not pair.peer.gone)
    assert not pair.peer.closed(time.monotonic())


def test_another_key_is_refused_with_a_warning(pair, caplog):
    _, keys = keys_of_secret(bytes(32))
    stranger = LinkClient(pair.server.address, keys)
    try:
        stranger.peer.send(b"let me in")
        deadline = time.monotonic() + 20
        while not stranger.refused:
            assert time.monotonic() < deadline
            stranger.poll(0.01)
            stranger.receive()
            stranger.peer.tick(time.monotonic())
            pair.step()
    finally:
        stranger.close()
    assert pair.at_server == [b"hello"]
    assert len([r for r in caplog.records if "does not have the key" in r.getMessage()]) == 1


def test_a_process_that_stood_still_has_heard_nothing_wrong(pair):
    pair.until(lambda: not pair.client.peer.in_flight)
    peer, now = pair.peer, time.monotonic()
    peer.tick(now)
    peer.tick(now + 60)  # as after SIGCONT
    assert peer.silent_s(now + 60) < SILENT_S


def test_an_address_that_is_not_this_hosts_or_is_taken_is_refused(pair):
    server_keys, _ = keys_of_secret(SECRET)
    for address in ("tcp://203.0.113.1:29400", pair.server.address):
        with pytest.raises(ConfigurationError, match="--rdzv-endpoint must name an address of this host"):
            LinkServer(address, server_keys)
