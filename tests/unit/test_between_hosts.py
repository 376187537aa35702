"""The messages between the launchers of several hosts: batches that fit, and bytes that are none."""

import pytest

from platoon_base.errors import ProtocolError
from platoon_base.multihost import messages as between

pytestmark = pytest.mark.base


def forwarded(size):
    return between.Forwarded(b"peer", b"12345678", bytes(size))


@pytest.mark.parametrize("sizes", [[], [1], [1, 2, 3], [1 << 22, 1 << 22], [1 << 21] * 5, [1 << 22, 1, 1 << 22, 1]])
def test_batches_keep_the_order_and_fit_into_a_message(sizes):
    items = [forwarded(size) for size in sizes]
    batches = list(between.batches(items))
    assert [item for batch in batches for item in batch] == items
    for batch in batches:
        assert len(batch) == 1 or sum(len(item.data) for item in batch) <= 1 << 22
        assert len(between.encode(between.Replies(batch))) < 1 << 23


@pytest.mark.parametrize("decode", [between.decode_up, between.decode_down])
@pytest.mark.parametrize("data", [b"", b"\xff", b"\x80", between.encode(between.Refused("x"))[:-1]])
def test_bytes_that_are_no_message_are_refused(decode, data):
    with pytest.raises(ProtocolError, match="install one version"):
        decode(data)


def test_messages_survive_the_wire():
    message = between.Requests([forwarded(3)], between.Rows(1.5, [3], b"row", b"\1"))
    assert between.decode_up(between.encode(message)) == message
