"""The link between the launchers of two hosts: each message once and in order; silence, ends and strangers."""

import contextlib
import os
import socket

import pytest

from platoon_base.channels.host_link import MAX_UNIDENTIFIED, LinkClient, LinkServer
from platoon_base.channels.host_peer import MAX_MESSAGE_BYTES
from platoon_base.channels.keys import keys_of_secret
from platoon_base.errors import ConfigurationError
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout
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
        self.client.receive()
        while self.client.inbox:
            self.at_client.append(self.client.inbox.popleft())
        now = awake()
        self.server.tick(now)
        self.client.peer.tick(now)

    def until(self, condition, timeout_s=20):
        began = awake()
        while not condition():
            assert awake() < began + timeout_s, (len(self.at_server), len(self.at_client))
            self.step()
        return awake() - began

    @property
    def peer(self):
        """The client, as the server sees it."""
        (peer,) = self.server.peers.values()
        return peer

    def peer_of(self, client):
        return self.server.peers[client.peer.session]


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
    seconds = pair.until(lambda: pair.peer.silent_s(awake()) > timeout("silence"))
    assert seconds < 5
    pair.client.peer.send(b"meanwhile")
    pair.peer.send(b"meanwhile")
    pair.until(lambda: pair.peer.silent_s(awake()) > 4)
    assert not pair.peer.closed(awake())
    assert not pair.client.peer.closed(awake())
    pair.way.passing.set()
    pair.until(lambda: pair.at_client == [b"meanwhile"] and pair.at_server[1:] == [b"meanwhile"])


def test_a_host_that_closes_is_noticed_and_may_come_back(pair):
    pair.way.cut()
    pair.until(lambda: pair.peer.gone)
    pair.until(lambda: not pair.peer.gone)
    assert not pair.peer.closed(awake())


def test_another_key_is_refused_with_a_warning(pair, caplog):
    _, keys = keys_of_secret(bytes(32))
    stranger = LinkClient(pair.server.address, keys)
    try:
        stranger.peer.send(b"let me in")
        deadline = awake() + 20
        while not stranger.refused:
            assert awake() < deadline
            stranger.poll(0.01)
            stranger.receive()
            stranger.peer.tick(awake())
            pair.step()
    finally:
        stranger.close()
    assert pair.at_server == [b"hello"]
    assert len([r for r in caplog.records if "does not have the key" in r.getMessage()]) == 1


def serve_new(pair):
    """Put another server in the place of the first one, as a launcher that was started again."""
    address = pair.server.address
    pair.server.close()
    server_keys, _ = keys_of_secret(SECRET)
    deadline = awake() + 20
    while True:
        with contextlib.suppress(ConfigurationError):  # the kernel may need a moment
            return LinkServer(address, server_keys)
        assert awake() < deadline


def test_a_server_that_was_started_anew_dismisses_whom_it_does_not_know(pair):
    pair.until(lambda: not pair.client.peer.in_flight)
    pair.server = serve_new(pair)
    try:
        pair.client.peer.send(b"late")
        pair.until(lambda: pair.client.dismissed)
        assert "host 0 has restarted" in pair.client.dismissed
        assert not pair.server.peers
        assert pair.at_server == [b"hello"]
    finally:
        pair.server.close()


def test_a_first_message_that_no_server_has_answered_finds_the_new_one(pair):
    _, keys = keys_of_secret(SECRET)
    early = LinkClient(pair.server.address, keys)
    early.peer.send(b"early")  # nobody polls it yet
    pair.server = serve_new(pair)
    pair.client.close()
    pair.client = early
    try:
        pair.until(lambda: b"early" in pair.at_server)
        assert not early.dismissed
    finally:
        early.close()
        pair.server.close()


def test_a_session_that_was_forgotten_is_dismissed(pair):
    pair.until(lambda: not pair.client.peer.in_flight)
    pair.server.forget(pair.client.peer.session)
    pair.until(lambda: pair.client.dismissed)
    assert "without this host" in pair.client.dismissed
    assert not pair.server.peers


def test_large_messages_arrive_whole_and_small_ones_overtake_the_bulk(pair):
    large = os.urandom(40 << 20)
    pair.peer.send(large, bulk=True)
    for body in numbered(300):
        pair.peer.send(body)
        pair.client.peer.send(body)
    pair.client.peer.send(large)
    pair.until(lambda: len(pair.at_client) == 301 and len(pair.at_server) == 302, 60)
    assert pair.at_client == [*numbered(300), large]
    assert pair.at_server[1:] == [*numbered(300), large]


def test_a_large_message_gets_through_a_connection_that_breaks(pair):
    large = os.urandom(20 << 20)
    pair.client.peer.send(large)
    for _ in range(3):
        for _ in range(5):
            pair.step()
        pair.way.cut()
    pair.until(lambda: len(pair.at_server) == 2, 60)
    assert pair.at_server[1] == large


def test_a_large_message_gets_through_a_slow_link_and_nobody_is_silent(pair):
    pair.way.bytes_per_s = 2 << 20
    large = os.urandom(12 << 20)  # longer than ZeroMQ waits for a heartbeat
    pair.peer.send(large, bulk=True)
    silent_s = 0.0
    while not pair.at_client:
        pair.step()
        now = awake()
        silent_s = max(silent_s, pair.client.peer.silent_s(now), pair.peer.silent_s(now))
        assert silent_s < timeout("silence")
    assert pair.at_client == [large]


def test_of_bulk_that_waits_only_the_latest_is_sent(pair):
    pair.way.passing.clear()
    for number in range(5):
        pair.peer.send(b"%d" % number * (8 << 20), bulk=True)
    pair.way.passing.set()
    pair.until(lambda: len(pair.at_client) == 2, 60)
    assert [body[:1] for body in pair.at_client] == [b"0", b"4"]


def test_a_message_that_is_too_large_is_not_sent_and_said(pair, caplog):
    pair.client.peer.send(bytes(MAX_MESSAGE_BYTES + 1))
    pair.client.peer.send(b"next")
    pair.until(lambda: pair.at_server == [b"hello", b"next"])
    assert "not sending a message" in caplog.text


def test_a_flood_of_strangers_takes_no_descriptors_and_keeps_nobody_out(pair):
    """Connections that prove nothing are closed, the oldest first, before they are many."""
    host, _, port = pair.server.address.removeprefix("tcp://").rpartition(":")
    before = len(os.listdir("/proc/self/fd"))
    _, keys = keys_of_secret(SECRET)
    late = LinkClient(pair.server.address, keys)
    strangers = []
    try:
        for number in range(5 * MAX_UNIDENTIFIED):
            strangers.append(socket.create_connection((host, int(port)), timeout=10))
            if number % 20 == 0:
                pair.step()
        late.peer.send(b"late")
        deadline = awake() + 20
        while b"late" not in pair.at_server:
            assert awake() < deadline
            late.receive()
            late.peer.tick(awake())
            pair.step()
        descriptors = len(os.listdir("/proc/self/fd")) - before - len(strangers)
        assert descriptors < MAX_UNIDENTIFIED + 50
        assert not pair.client.dismissed
        assert not pair.peer_of(pair.client).gone
    finally:
        late.close()
        for each in strangers:
            each.close()


def test_a_stranger_who_announces_a_large_frame_is_disconnected_before_it_comes(pair):
    host, _, port = pair.server.address.removeprefix("tcp://").rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        began = awake()
        stranger.sendall(greeting + b"\x06" + (1 << 20).to_bytes(8, "big"))  # a command of 1 MB
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(1000):  # the server's own greeting
                pass
    assert awake() - began < timeout("handshake") / 2


def test_an_address_that_is_not_this_hosts_or_is_taken_is_refused(pair):
    server_keys, _ = keys_of_secret(SECRET)
    for address in ("tcp://203.0.113.1:29400", pair.server.address):
        with pytest.raises(ConfigurationError, match="--rdzv-endpoint must name an address of this host"):
            LinkServer(address, server_keys)
