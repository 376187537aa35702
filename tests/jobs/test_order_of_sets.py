"""Python orders the strings of a set by a number of each process; labels numbered by a set need a common one."""

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base


def test_all_workers_of_all_hosts_have_sets_in_the_same_order(hosts):
    """A worker that joins late has it too."""
    assert hosts.run(script_path("order_of_sets"), workers=(2, 1)) == [0, 0], hosts.output(0)
    launched_and_joined = [*hosts.said(0, 0), *hosts.said(1, 0), *hosts.said(2, 1)]
    assert len(launched_and_joined) == 4
    assert all(order == launched_and_joined[0] for order in launched_and_joined)
