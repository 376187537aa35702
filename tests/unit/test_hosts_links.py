"""The links of a rank within calls: records that come late, early, or out of turn. The connections are real."""

from __future__ import annotations

import socket
import struct
import time
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from platoon_base.collectives.groups import Membership
from platoon_base.collectives.host_exchange import headline, part_of
from platoon_base.collectives.hosts import HostsCollective
from platoon_base.collectives.hosts_links import HEAD, WAITING, Counterpart, Link, Links
from platoon_base.collectives.hosts_parts import RESULT, SHARE, Chunks, Reduction
from platoon_base.errors import PlatoonError
from platoon_base.hosts import World
from platoon_base.links.stream import Cipher, Stream, derive_keys

pytestmark = pytest.mark.base

PATIENCE_S = 20  # never reached by a test that passes
HEADER = part_of(np.zeros(8, np.int64), "all_reduce", "sum", "float32", 5)


@pytest.fixture(params=["encrypted", "plain"])
def two(request):
    """The links of two ranks to each other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    keys = derive_keys(b"secret", b"transcript") if request.param == "encrypted" else None
    ciphers = [(Cipher(keys[i]), Cipher(keys[1 - i])) if keys else (None, None) for i in (0, 1)]
    breaks = []
    links = [
        Links(
            [(Counterpart(1 - i, 1 - i, 1 - i, f"rank {1 - i}"), Stream(sock, *ciphers[i]))],
            lambda *why: breaks.append(why),
        )
        for i, sock in enumerate((near, far))
    ]
    yield links
    for each in links:
        each.close()
    assert not breaks


def test_a_connection_that_is_reset_is_named_with_what_to_do():
    """As by a firewall. The other process may have ended, so its end is waited for first, as the better reason."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    links = Links([(Counterpart(1, 1, 1, "rank 1 on host 1"), Stream(near, None, None))], lambda *why: None)
    try:
        links.begin(HEADER)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        began = time.monotonic()
        while not links.broken(Link.owes_head):
            assert time.monotonic() < began + PATIENCE_S
            links.pump()
        assert time.monotonic() > began + 1
        said = links.broken(Link.owes_head)
        assert "the link to rank 1 on host 1 is broken: [Errno 104] Connection reset by peer" in said
        assert "start the job again" in said
        assert "firewall" in said
    finally:
        links.close()


def pump_until(links, done):
    """Receive until it is so; the other side has sent all that is needed."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        for each in links:
            each.pump()
            assert not each.all[0].closed


def begin(*links):
    for each in links:
        each.begin(HEADER)


def test_what_a_rank_waited_for_in_an_earlier_call_is_dropped(two):
    """As in small all-reduces, in which only the first ranks of the hosts use their links."""
    mine, theirs = two
    begin(mine, theirs)
    theirs.report_wait([3])  # and this side does not look before the call has ended
    theirs.report_wait([3, 4])
    begin(mine, theirs)
    theirs.announce(b"small")
    mine.announce(b"small")
    pump_until(two, lambda: mine.agree() and theirs.agree())
    assert mine.all[0].missing == [1]


def test_a_rank_that_is_ahead_is_not_heard_before_its_call(two):
    mine, theirs = two
    begin(mine, theirs)
    theirs.announce(b"")
    begin(theirs)
    theirs.report_wait([3])
    pump_until(two, lambda: mine.all[0].stream.held)
    assert mine.agree()
    assert mine.all[0].missing == [1]
    begin(mine)
    pump_until(two, lambda: mine.all[0].missing == [3])
    theirs.report_wait([])
    pump_until(two, lambda: mine.all[0].missing == [1])


@pytest.mark.parametrize(
    ("kind", "ahead", "content"),
    [
        (HEAD, 0, bytes(8)),
        (HEAD, -1, HEADER.tobytes()),
        (HEAD, 2, HEADER.tobytes()),
        (WAITING, 2, bytes(4)),
        (WAITING, 0, b"abc"),
        (WAITING, -1, b"abc"),
        (77, 0, b""),
    ],
)
def test_records_that_no_rank_sends_break_the_link(two, kind, ahead, content):
    mine, theirs = two
    for _ in range(3):
        begin(mine, theirs)
    theirs.all[0].stream.post(kind, mine.call + ahead, content)
    theirs.pump()
    deadline = time.monotonic() + PATIENCE_S
    while not mine.all[0].closed:
        assert time.monotonic() < deadline
        mine.pump()
    assert "out of order" in mine.all[0].closed
    assert mine.all[0].altered


def test_parts_of_calls_with_other_shapes_differ():
    """Also in the last of many dimensions, and in a part that has as many elements."""
    shapes = [(1, 1, 1, 1, 2, rows) for rows in (5, 6)]
    calls = [headline("all_reduce", "sum", 0, np.zeros(shape, "float32"), 99) for shape in shapes]
    first, second = (part_of(call, "all_reduce", "sum", "float32", 9) for call in calls)
    assert (first != second).any()


def test_a_share_that_is_early_waits_until_its_memory_is_free():
    stream = Mock(posted=2, sent=0)
    links = Mock(all=[Mock(to=Mock(host=1), stream=stream)])
    reduction = Reduction(links, 0, 2, 2, "sum", np.dtype("float32"), Chunks([4, 4, 4], 2))

    def is_free(chunk):
        return reduction.place(1, SHARE, chunk, 0, 16) is not None

    assert [is_free(chunk) for chunk in range(3)] == [True, True, False]
    reduction.done(1, SHARE, 0, 0, 16)
    assert not is_free(2)
    reduction.begin(0, np.ones(8, "float32"), np.ones(8, "float32"))
    assert is_free(2)
    reduction.done(1, RESULT, 0, 0, 16)
    assert not reduction.ended(0), "its own records are still to be sent"
    stream.sent = stream.posted
    assert reduction.ended(0)


def test_the_rank_that_has_failed_is_named_before_those_that_it_has_kept_from_a_link():
    encode = msgspec.msgpack.encode
    kept, failed = encode({"failure": "no link", "elsewhere": True}), encode({"failure": "no room"})
    world = World([1, 1, 1], 1, ["a", "b", "c"], ["127.0.0.1"] * 3, "")
    membership = Membership(Mock(), 1, 3, Mock(), world)
    membership.meet = lambda what, mine, timeout_s: {0: kept, 1: mine, 2: failed}
    with pytest.raises(PlatoonError, match=r"rank 2 on host 2 \(c\): no room"):
        HostsCollective.form(membership, "/unused", PATIENCE_S)
