"""What the first host sends the others of the job's state: each change once to each host, and nobody its own rows."""

import random

import numpy as np
import pytest

from platoon_base.coordination.roster import Roster
from platoon_base.hosts import World
from platoon_base.multihost.mirror import StateChanges
from platoon_base.shm.job_state import MIRRORED, JobState, copied_rows, put_rows

pytestmark = pytest.mark.base

ROWS, HOSTS, EACH = 8, 3, 2


class Job:
    """A job of three hosts with two workers each, as the first host has it; workers hold the locks in ``held``."""

    def __init__(self):
        world = World([EACH] * HOSTS, 0, ["a", "b", "c"], ["127.0.0.1"] * HOSTS)
        self.roster = Roster(EACH * HOSTS, seed=0, world=world)
        self.state = JobState(bytearray(JobState.size_bytes(ROWS)), ROWS, create=True)
        self.held = set()
        self.changes = StateChanges(self.state, self.roster, self.held.__contains__)

    def sent(self, host):
        """Return the ranks that a host is sent now."""
        found = self.changes.since_sent(host)
        return [] if found is None else found.rows.ranks

    def settle(self):
        """Send everything to all hosts."""
        self.changes.poll()
        for host in range(1, HOSTS):
            self.changes.since_sent(host)


@pytest.fixture
def job():
    return Job()


def test_between_looks_only_those_that_join_are_found(job):
    job.held |= {0, 2}
    job.settle()
    job.state.row(0)["steps"] = 5
    job.held.add(4)
    job.changes.collect_joined()
    assert job.sent(1) == [4]
    job.changes.collect_joined()
    assert job.sent(1) == []
    job.changes.poll()
    assert job.sent(1) == [0]


@pytest.mark.parametrize("seed", range(5))
def test_each_host_has_the_state_of_the_first_after_a_look_and_gets_each_change_once(job, seed):
    """Whatever happens in between, however seldom a host is sent something, and if one begins anew."""
    rng = random.Random(seed)
    copies = {host: JobState(bytearray(JobState.size_bytes(ROWS)), ROWS, create=True) for host in (1, 2)}
    held, endings = {1: {}, 2: {}}, {1: [], 2: []}

    def send(host):
        found = job.changes.since_sent(host)
        if found is not None:
            put_rows(copies[host], found.rows.ranks, np.frombuffer(found.rows.rows, MIRRORED), 0.0)
            held[host].update(zip(found.rows.ranks, found.rows.held))
            endings[host] += found.endings
        assert job.changes.since_sent(host) is None
        return found

    for _ in range(300):
        rank = rng.randrange(6)
        job.state.row(rank)["steps"] += rng.randrange(2)
        job.state.stop_votes[rank] = rng.randrange(3)
        rng.choice([job.held.add, job.held.discard])(rank)
        rng.choice([job.changes.poll, job.changes.collect_joined, lambda: None])()
        for host in copies:
            if rng.random() < 0.3:
                send(host)
    job.held |= set(range(6))
    job.state.row(5)["lives"] = 2
    job.state.write_text(5, "ending", "killed by SIGKILL")
    job.changes.poll()
    for host, copy in copies.items():
        send(host)
        others = [rank for rank in range(6) if job.roster[rank].host_index != host]
        assert copied_rows(copy, others).tobytes() == copied_rows(job.state, others).tobytes()
        assert held[host] == dict.fromkeys(others, 1)
        assert endings[host] == [(5, 2, "killed by SIGKILL")]
    job.state.stop("enough")
    job.state.leader = 2
    job.changes.collect_joined()
    job.changes.forget(2)
    for host, ranks in ((1, []), (2, [0, 1, 2, 3])):
        found = send(host)
        assert (found.stop, found.leader, found.rows.ranks) == ("enough", 2, ranks)
    live = job.roster.num_live
    job.roster.depart(job.roster[3], lost=False)
    assert [send(host).num_live for host in (1, 2)] == [(1, live - 1), (2, live - 1)]
