"""GoSGD in jobs of real processes: against a simulation with lists of messages, through ends, joins and checkpoints."""

import json

import pytest
from scripts_here import script_path

from tests.helpers.gossip_simulation import Simulation, load, some_turns

pytestmark = pytest.mark.base


SCRIPT = script_path("workers_in_turns")


def words(plan, *turns):
    return ["GoSGD", plan, *map(json.dumps, turns)]


@pytest.mark.parametrize("end", ["leaves", pytest.param("killed", marks=pytest.mark.promise)])
def test_the_weight_of_one_that_leaves_is_given_away_and_that_of_the_dead_lost(run_job, tmp_path, end):
    of_three, of_two = some_turns(3, 0, 12), some_turns(2, 20, 8)
    outcome = run_job(SCRIPT, 3, args=words(end, of_three, of_two))
    ended = {exit.rank: exit.status for exit in outcome.result.exits}
    assert ended[0] == ended[1] == 0, outcome.logs
    simulation, found = Simulation(3), load(tmp_path, 0, 1, 2)
    simulation.take_turns(found, of_three)
    simulation.leave(2) if end == "leaves" else simulation.die(2)
    simulation.take_turns(found, of_two)


@pytest.mark.promise
def test_a_late_worker_takes_half_of_a_weight(run_job, tmp_path):
    of_two, of_three, after = some_turns(2, 0, 9), some_turns([2], 20, 4), some_turns(2, 30, 6)
    run_job(SCRIPT, args=words("late", of_two, of_three, after)).require_success()
    simulation, found = Simulation(2), load(tmp_path, 0, 1, 2)
    simulation.take_turns(found, of_two)
    simulation.join(2)
    simulation.take_turns(found, of_three)
    simulation.leave(2)
    simulation.take_turns(found, after)


def test_one_that_is_started_again_takes_half_of_a_weight(run_job, tmp_path):
    before, again, after = some_turns(3, 0, 10), some_turns([1], 20, 3), some_turns([0, 2], 30, 8)
    outcome = run_job(SCRIPT, 3, args=words("again", before, again, after), max_restarts=1)
    assert {exit.rank: exit.status for exit in outcome.result.exits} == {0: 0, 1: 0, 2: 0}, outcome.logs
    simulation, found = Simulation(3), load(tmp_path, 0, 1, 2)
    simulation.take_turns({**found, **load(tmp_path, 1, name="first")}, before)
    simulation.die(1)
    simulation.join(1)
    simulation.take_turns(found, again)
    simulation.leave(1)
    simulation.take_turns(found, after)


@pytest.mark.promise
def test_a_resumed_job_goes_on_from_the_consensus(platoon, tmp_path):
    before, after = some_turns(2, 0, 8), some_turns(2, 20, 8)
    for job, turns in (("first", before), ("second", after)):
        platoon("launch", "-n", 2, "--resume", "kept", SCRIPT, tmp_path, *words(job, turns)).require()
    simulation = Simulation(2)
    simulation.take_turns(load(tmp_path, 0, 1, name="first"), before)
    resumed = Simulation(2, simulation.mean())
    resumed.take_turns(load(tmp_path, 0, 1, name="second"), after)


def test_there_is_no_center_to_change_and_copying_reaches_all(run_job):
    run_job(script_path("gossip_refused")).require_success()


def test_one_training_follows_the_other(run_job):
    run_job(script_path("gossip_two_trainings"), 3).require_success()


def test_a_job_on_two_hosts_is_refused(hosts):
    assert hosts.run(script_path("gossip_two_trainings"), workers=(1, 2)) == [1, 1], hosts.output(0)
    # The first worker that is refused ends the job, so others may be stopped while they import.
    logs = [hosts.log(rank, host) for rank, host in ((0, 0), (1, 1), (2, 1))]
    assert any("workers gossip only on one host; use LocalSGD or EASGD" in log for log in logs), logs
