"""The link between the launchers of two hosts: each message once and in order; silence, ends and strangers."""

import contextlib
import functools
import os
import select
import signal
import socket

import pytest
from watching import until

from platoon_base.errors import ConfigurationError
from platoon_base.links import peer
from platoon_base.links.handshake import Address, Caller, Opening
from platoon_base.links.peer import MAX_MESSAGE_BYTES, LinkClient, LinkServer
from platoon_base.links.stream import MAX_PAYLOAD_BYTES, BrokenStreamError
from platoon_base.system.process import awake
from platoon_base.timeouts import timeout
from tests.helpers.breakable import Breakable

pytestmark = pytest.mark.base

HERE, SECRET = "127.0.0.1", bytes(range(32))


class Pair:
    """Both ends, the client's way through `Breakable`, and what each has received."""

    def __init__(self, stack):
        self._stack = stack
        self.server = self.closed(LinkServer(HERE, 0, SECRET))
        self.way = stack.enter_context(Breakable(self.server.port))
        self.client = self.connect(port=self.way.port)
        self.at_server, self.at_client = [], []

    def closed(self, end):
        self._stack.callback(end.close)
        return end

    def connect(self, key=SECRET, port=None):
        return self.closed(LinkClient(HERE, port or self.server.port, key))

    def serve_anew(self):
        """Put another server in the place of the first one, as a launcher that was started again."""
        self.server.close()
        self.server = self.closed(LinkServer(HERE, self.server.port, SECRET))

    def step(self):
        self.client.poll(0.01)
        self.at_server += [body for _, body in self.server.receive()]
        self.client.receive()
        while self.client.inbox:
            self.at_client.append(self.client.inbox.popleft())
        now = awake()
        self.server.tick(now)
        self.client.peer.tick(now)

    def until(self, condition, timeout_s=20, other=None):
        """Make steps, those of another client too, until a condition holds; returns the seconds."""
        began = awake()
        while not condition():
            assert awake() < began + timeout_s, (len(self.at_server), len(self.at_client))
            if other is not None:
                other.poll(0.01)
                other.receive()
                other.peer.tick(awake())
            self.step()
        return awake() - began

    def is_whole(self):
        return None not in (self.peer.idle, self.client.peer.idle)

    def until_server(self, condition):
        """Wait without the client, which is closed."""
        began = awake()
        while not condition():
            assert awake() < began + 20
            self.server.poll(0.01)
            self.at_server += [body for _, body in self.server.receive()]
        return awake() - began

    @property
    def peer(self):
        (peer,) = self.server.peers.values()
        return peer

    def peer_of(self, client):
        return self.server.peers[client.peer.session]


@pytest.fixture
def pair():
    with contextlib.ExitStack() as stack:
        made = Pair(stack)
        made.client.peer.send(b"hello")
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
    stranger = pair.connect(bytes(32))
    stranger.peer.send(b"let me in")
    pair.until(lambda: stranger.refused, other=stranger)
    assert pair.at_server == [b"hello"]
    assert len([r for r in caplog.records if "does not have the key" in r.getMessage()]) == 1


def test_why_host_0_cannot_be_reached_is_known(pair):
    pair.until(pair.is_whole)
    assert pair.client.why == ""
    pair.server.close()
    early = pair.connect()
    until(lambda: "Connection refused" in early.why, step=early.receive)


def test_a_server_that_was_started_anew_dismisses_whom_it_does_not_know(pair):
    pair.until(lambda: not pair.client.peer.in_flight)
    pair.serve_anew()
    pair.client.peer.send(b"late")
    pair.until(lambda: pair.client.dismissed)
    assert "host 0 has restarted" in pair.client.dismissed
    assert not pair.server.peers
    assert pair.at_server == [b"hello"]


def test_a_first_message_that_no_server_has_answered_finds_the_new_one(pair):
    early = pair.connect()
    early.peer.send(b"early")  # nobody polls it yet
    pair.serve_anew()
    pair.client.close()
    pair.client = early
    pair.until(lambda: b"early" in pair.at_server)
    assert not early.dismissed


def test_a_session_that_was_forgotten_is_dismissed(pair):
    pair.until(lambda: not pair.client.peer.in_flight)
    pair.server.forget(pair.peer)
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
    large = os.urandom(12 << 20)  # longer than a silence
    pair.peer.send(large, bulk=True)
    silent_s, sent_at, arrived_at = 0.0, 0, 0
    while large not in pair.at_client:
        pair.step()
        now = awake()
        silent_s = max(silent_s, pair.client.peer.silent_s(now), pair.peer.silent_s(now))
        assert silent_s < timeout("silence")
        if not sent_at and pair.way.passed > 3 << 20:
            sent_at = pair.way.passed
            pair.peer.send(b"urgent")
        if not arrived_at and pair.at_client == [b"urgent"]:
            arrived_at = pair.way.passed
    assert pair.at_client == [b"urgent", large]
    assert 0 < arrived_at - sent_at < 1 << 20


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


def test_a_launcher_of_an_older_version_is_refused_at_once(pair, caplog):
    """It begins as ZeroMQ does, and waits for an answer."""
    with socket.create_connection((HERE, pair.server.port), timeout=10) as stranger:
        stranger.sendall(b"\xff" + bytes(8) + b"\x7f")
        pair.until(lambda: "another version" in caplog.text, timeout("handshake") / 2)


def test_who_has_the_key_and_sends_nonsense_ends_its_own_connection_only(pair):
    """As a launcher of another version, or with a fault, may do."""
    address = Address(HERE, pair.server.port, peer.TOKEN)
    for tag, length in ((7, 0), (peer.HELLO, 5), (peer.PART, MAX_PAYLOAD_BYTES), (peer.IDLE, 32), (peer.HELLO, 32)):
        opening = Opening(None, Caller(77, SECRET, frozenset()), {0: address})
        while not opening.open:
            opening.step(awake())
            pair.step()
        stream = opening.open.pop(0)
        stream.post(tag, 1, bytes(length))
        stream.post(peer.PART, 2, b"a part before the first")
        stream.push()
        assert pair.until(functools.partial(is_closed, stream)) < 5
        opening.close()
    pair.client.peer.send(b"still here")
    pair.until(lambda: pair.at_server[-1] == b"still here")


class Ignored:
    def place(self, tag, offset, length):
        return memoryview(bytearray(length))

    def done(self, tag, offset, length):
        pass


def is_closed(stream):
    try:
        stream.pull(Ignored())
    except BrokenStreamError:
        stream.close()
        return True
    return False


def test_an_address_that_is_not_this_hosts_or_is_taken_is_refused(pair):
    for address, port in (("203.0.113.1", 29400), (HERE, pair.server.port)):
        with pytest.raises(ConfigurationError, match="--rdzv-endpoint must name an address of this host"):
            LinkServer(address, port, SECRET)


# The end of a process.


def test_the_end_of_either_is_noticed_soon(pair):
    pair.until(pair.is_whole)
    for _ in range(20):
        pair.step()
    there = pair.peer
    assert not there.gone
    pair.client.close()
    assert pair.until_server(lambda: there.closed(awake())) < 2.5


def test_launchers_that_were_refused_and_end_take_no_memory(pair):
    pair.until(pair.is_whole)
    member = pair.client.peer.session
    with contextlib.closing(LinkClient(HERE, pair.server.port, SECRET)) as refused:
        pair.until(lambda: refused.receive() or (len(pair.server.peers) == 2 and pair.peer_of(refused).idle))
        pair.server.drop_lost(awake(), {member})
        assert len(pair.server.peers) == 2
    pair.until(lambda: pair.server.drop_lost(awake(), {member}) or len(pair.server.peers) == 1, timeout_s=2.5)
    pair.client.close()
    pair.until_server(lambda: pair.peer.closed(awake()))
    pair.server.drop_lost(awake(), {member})
    assert set(pair.server.peers) == {member}, "a member may return"


def test_the_end_of_host_0_is_noticed_soon(pair):
    pair.until(pair.is_whole)
    pair.server.close()
    began = awake()
    while not pair.client.peer.closed(awake()):
        assert awake() < began + 2.5
        pair.client.poll(0.01)
        pair.client.receive()


def test_a_process_that_is_killed_with_unread_messages_is_noticed_soon(pair):
    """Its system resets the connection of the messages: only the idle one ends in order."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover
        client = LinkClient(HERE, pair.server.port, SECRET)
        signal.alarm(20)
        while client.peer.idle is None:
            client.poll(0.01)
            client.receive()
        os.write(writes, b"x")
        signal.pause()
    try:
        pair.until(lambda: select.select([reads], [], [], 0)[0])
        (there,) = [each for session, each in pair.server.peers.items() if session != pair.client.peer.session]
        there.send(bytes(1000))
        pair.until(lambda: there.silent_s(awake()) > 0.5)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert pair.until(lambda: there.closed(awake())) < 2
    for fd in (reads, writes):
        os.close(fd)


def test_messages_that_arrive_last_do_not_hide_the_end_of_a_process(pair):
    pair.until(pair.is_whole)
    there = pair.peer
    pair.client.peer.idle.close()
    pair.until_server(lambda: there.gone)
    pair.client.peer.send(b"last")
    pair.client.close()
    assert pair.until_server(lambda: there.closed(awake())) < 2.5
    assert pair.at_server[1:] == [b"last"]


def test_a_reset_is_no_end(pair):
    """A firewall may reset connections for a while, and refuse new ones."""
    pair.until(pair.is_whole)
    pair.way.refusing.set()
    pair.way.cut()
    pair.until(lambda: pair.peer.gone and pair.peer.silent_s(awake()) > 2)
    assert not pair.peer.closed(awake())
    assert not pair.client.peer.closed(awake())
    pair.client.peer.send(b"back")
    pair.way.refusing.clear()
    pair.until(lambda: pair.at_server[1:] == [b"back"] and not pair.peer.gone)


def test_a_connection_that_carries_nothing_is_replaced(pair):
    """TCP would repeat for minutes on a connection that a router has forgotten."""
    pair.until(pair.is_whole)
    pair.way.forget()
    pair.client.peer.send(b"from the client")
    pair.peer.send(b"from the server")
    assert pair.until(lambda: len(pair.at_client) == 1 and len(pair.at_server) == 2) < 0.8 * timeout("host")
    assert not pair.peer.closed(awake())


def test_who_is_heard_of_later_has_not_ended(pair):
    """Something on the way may close a connection that is idle."""
    pair.until(pair.is_whole)
    pair.client.peer.idle.close()
    pair.client.peer.idle = None
    pair.until(lambda: pair.peer.gone)
    pair.until(lambda: not pair.peer.gone and pair.is_whole())
    assert not pair.peer.closed(awake() + 60)


def test_who_has_heard_all_that_passed_opens_no_connection_and_ends_no_host(pair):
    """Nothing secret passes: what was heard opens no second connection, however often it is repeated."""
    pair.until(pair.is_whole)
    copies = []
    for heard in [*pair.way.heard.values()] * 30:
        copies.append(socket.create_connection((HERE, pair.server.port)))
        copies[-1].sendall(heard)
        pair.step()
    for copy in copies:
        copy.close()
    for _ in range(100):
        pair.step()
    assert pair.at_server == [b"hello"]
    assert not pair.peer.gone
