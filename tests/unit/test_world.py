"""The numbering of workers host by host."""

import pytest

from platoon_base.hosts import World

pytestmark = pytest.mark.base


def test_workers_are_numbered_host_by_host():
    world = World([2, 1, 3], host=2)
    assert (world.hosts, world.several, world.size) == (3, True, 6)
    assert [list(world.ranks_on(host)) for host in range(3)] == [[0, 1], [2], [3, 4, 5]]
    assert world.ranks_here == range(3, 6)
    assert [world.host_of(rank) for rank in range(6)] == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_that_was_not_launched_has_no_host(rank):
    with pytest.raises(IndexError):
        World([2, 1]).host_of(rank)


def test_its_text_does_not_show_the_key():
    assert "secret" not in repr(World([1, 1], data_key="secret"))
