"""GoSGD in jobs on several hosts, by real launchers, couriers and workers; the hosts are folders of this machine."""

import json
import time

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.centers.gossip_memory import WHOLE
from tests.helpers.gossip_simulation import Simulation, load, some_turns
from tests.helpers.launching_hosts import Hosts

pytestmark = pytest.mark.base


def hosts_of(workers):
    return [host for host, count in enumerate(workers) for _ in range(count)]


@pytest.mark.parametrize("workers", [(2, 1), (1, 2, 1)])
def test_workers_of_several_hosts_by_turns_follow_the_paper(hosts, workers):
    size = sum(workers)
    turns = some_turns(size, 0, 20)
    args = [str(hosts.folder), "GoSGD", "on hosts", json.dumps(turns)]
    done = hosts.run(script_path("workers_in_turns"), workers=workers, args=args)
    assert done == [0] * len(workers), "".join(map(hosts.output, range(len(workers))))
    found = load(hosts.folder, *range(size))
    Simulation(size, hosts=hosts_of(workers)).take_turns(found, turns)
    for turn, _ in turns:
        for i in (0, 1):
            for other in range(1, size):  # the same bits on all hosts
                np.testing.assert_array_equal(found[0][f"{turn} c {i}"], found[other][f"{turn} c {i}"])


def require_one_end(hosts, *where):
    """Require that workers, by rank and host, end with models that fit; return the weight of their hosts.

    Those that have met have one model.
    """
    ends = {(rank, host): hosts.said(rank, host)[-1] for rank, host in where}
    assert len({end[0] for end in ends.values()}) == len({tuple(end[3]) for end in ends.values()})
    assert all(end[1] < 1e-6 for end in ends.values()), [end[1] for end in ends.values()]
    of_host = {host: int(end[2]) for (_, host), end in ends.items()}
    return sum(of_host.values())


@pytest.mark.promise
def test_least_squares_on_two_hosts_ends_where_one_host_does(hosts):
    """Without noise all of them find the solution; the weights of both hosts are all that there is."""
    code, options = script_path("gossip_hosts_least_squares"), ["--hosts-compression", "int8"]
    assert hosts.run(code, *options, workers=(2, 2), args=[str(hosts.folder)]) == [0, 0]
    assert require_one_end(hosts, (0, 0), (1, 0), (2, 1), (3, 1)) == WHOLE
    logs = [hosts.log(rank, host) for rank, host in ((0, 0), (1, 0), (2, 1), (3, 1))]
    assert sum(log.count("--hosts-compression int8 does not apply to GoSGD") for log in logs) == 1


def test_couriers_that_are_killed_double_no_message(hosts):
    environment = {"PLATOON_NO_FORK_SERVER": "1"}  # so that the launcher is the parent of its workers
    code = script_path("gossip_hosts_couriers_killed")
    done = hosts.run(code, workers=(1, 1), environment=environment, args=[str(hosts.folder)])
    assert done == [0, 0], hosts.log(0, 0) + hosts.log(1, 1)
    assert "the courier of this host ended (status -9), and is started again" in hosts.output(1)
    weight = require_one_end(hosts, (0, 0), (1, 1))
    assert 0 < weight <= WHOLE  # the one stripe of a message is lost if a courier is killed right then


def until_begun(hosts, rank, host, times=1):
    deadline = time.monotonic() + 100
    path = hosts.folder / f"logs{host}" / f"rank{rank}.log"
    while not path.exists() or len(hosts.said(rank, host)) < times:
        assert time.monotonic() < deadline, hosts.output(0) + hosts.output(host)
        time.sleep(0.01)


def test_a_host_is_lost_and_returns(hosts):
    code, args = script_path("gossip_hosts_lost"), [str(hosts.folder)]
    for host, workers in ((0, 2), (1, 1)):
        hosts.start(code, "--allow-failures", host=host, workers=workers, args=args)
    until_begun(hosts, 2, 1)
    hosts.launchers[1].kill()
    hosts.until("h0.out", "is lost, with workers 2")
    hosts.launchers.pop(1).wait()
    (hosts.folder / "logs1" / "rank2.log").unlink()
    hosts.start(code, "--allow-failures", host=1, workers=1, args=args)
    hosts.until("h0.out", "is back, with workers 2")
    until_begun(hosts, 2, 1)
    assert hosts.said(2, 1)[0][1] != 0  # what the others have learned
    (hosts.folder / "enough").touch()
    assert hosts.wait() == [0, 0], hosts.output(0) + hosts.output(1)
    assert require_one_end(hosts, (0, 0), (1, 0), (2, 1)) > 0


def test_a_worker_of_another_host_that_is_started_again_takes_part(hosts):
    code, args = script_path("gossip_hosts_lost"), [str(hosts.folder), "fails"]
    for host, workers in ((0, 2), (1, 1)):  # for a while host 1 has no worker
        hosts.start(code, "--max-restarts", "1", host=host, workers=workers, args=args)
    until_begun(hosts, 2, 1)
    (hosts.folder / "fail").touch()
    until_begun(hosts, 2, 1, times=2)
    (hosts.folder / "enough").touch()
    assert hosts.wait() == [0, 0], hosts.output(0) + hosts.output(1)
    assert require_one_end(hosts, (0, 0), (1, 0), (2, 1)) > 0


def test_one_training_follows_the_other_on_two_hosts(hosts):
    assert hosts.run(script_path("gossip_two_trainings"), workers=(2, 1)) == [0, 0], hosts.output(0)


def test_a_job_on_two_hosts_goes_on_from_the_consensus_of_both(hosts):
    code, options = script_path("gossip_hosts_resumed"), ["--resume", "kept", "--checkpoint-every", "100"]
    assert hosts.run(code, *options, workers=(1, 1), args=[str(hosts.folder)]) == [0, 0], hosts.output(0)
    end = hosts.said(0, 0)[1]
    assert hosts.said(1, 1)[1] == end
    again = Hosts(hosts.folder, hosts.environment)
    try:
        assert again.run(code, *options, workers=(1, 1), args=[str(hosts.folder)]) == [0, 0], again.output(0)
        assert "resumed from" in again.output(0)
        assert again.said(0, 0)[0] == end
        assert again.said(1, 1)[0] == end
    finally:
        again.close()
