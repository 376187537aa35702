"""GoSGD in jobs on several hosts, by real launchers, couriers and workers; the hosts are folders of this machine."""

import json

import numpy as np
import pytest
from scripts_here import script_path

from tests.helpers.gossip_simulation import Simulation, load, some_turns

pytestmark = pytest.mark.base


def hosts_of(workers):
    return [host for host, count in enumerate(workers) for _ in range(count)]


@pytest.mark.parametrize("workers", [(1, 1), (2, 1), (1, 2, 1)])
def test_workers_of_several_hosts_by_turns_follow_the_paper(hosts, workers):
    size = sum(workers)
    turns = some_turns(size, 0, 20)
    code = script_path("gossip_hosts_turns")
    done = hosts.run(code, workers=workers, args=[str(hosts.folder), json.dumps(turns)])
    assert done == [0] * len(workers), "".join(map(hosts.output, range(len(workers))))
    found = load(hosts.folder, *range(size))
    Simulation(size, hosts=hosts_of(workers)).take_turns(found, turns)
    for turn, _ in turns:
        for i in (0, 1):
            for other in range(1, size):  # the same bits on all hosts
                np.testing.assert_array_equal(found[0][f"{turn} c {i}"], found[other][f"{turn} c {i}"])
