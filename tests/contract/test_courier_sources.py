"""The values that all hosts start from, where the first host has no center: by real couriers, in turns of one loop."""

import pytest

from platoon_base.courier import messages as between
from platoon_base.rules import ASGD
from tests.helpers.couriers_in_turns import Hosts, listening_of, model, overwrite, require_equal

pytestmark = pytest.mark.base


def test_without_a_center_on_the_first_host_all_start_from_another_and_so_does_the_first_later():
    with Hosts([1.0, 2.0, 3.0], rule=ASGD()) as group:
        group.introduce()
        group.made(1, 2)
        for _ in range(5):
            for host in group.hosts:
                host.courier.step([])
        assert not any(isinstance(n, between.Filled) for host in group.hosts for n in host.news)
        group.introduce(source=1)
        group.until_filled(1, 2)
        require_equal(group.hosts[2].values(), model(2.0))
        overwrite(group, 2, 7.0)  # also without a center on the first host
        require_equal(group.hosts[1].values(), model(7.0))
        group.made(0)
        group.until_filled(0)
        require_equal(group.hosts[0].values(), model(7.0))
        group.until_exchanged()


def test_a_courier_that_is_started_again_keeps_the_values_of_the_source():
    with Hosts([1.0, 2.0]) as group:
        group.introduce(source=1)
        group.made()
        group.until_filled()
        for host in group.hosts:
            require_equal(host.values(), model(2.0))
            host.filled = True
        group.hosts[1].restart()
        group.introduce(source=1)
        group.made(1)
        group.until_exchanged()
        for host in group.hosts:
            require_equal(host.values(), model(2.0))


def test_when_the_source_is_lost_all_start_from_the_next():
    """Also a host that has got values of the lost one, which the launcher did not hear of."""
    with Hosts([1.0, 2.0, 3.0, 4.0]) as group:
        group.introduce(source=1)
        group.made(1, 3)
        group.until_filled(1, 3)
        group.made(2)
        group.hosts[1].courier.close()
        rest = [group.hosts[0], *group.hosts[2:]]
        for host in rest:
            host.courier.handle_order(between.Lost(1))
        for host in rest:
            host.courier.handle_order(between.Peers(listening_of(rest), source=2))
        group.until(lambda: all(abs(host.values()[0] - 3.0).max() < 1e-6 for host in rest[1:]), rest)
        group.until_exchanged(rest[1:])
        for host in rest[1:]:
            require_equal(host.values(), model(3.0))
