"""GoSGD in jobs of real processes: against a simulation with lists of messages, through ends, joins and checkpoints."""

import json

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.rules import GoSGD

pytestmark = pytest.mark.base

RULE, SHAPES = GoSGD(probability=0.5, seed=5), [(3, 4), (5,)]


class Simulation:
    """The algorithm of the paper, with joins and ends."""

    def __init__(self, workers, start=None):
        self.x, self.w, self.mail, self.random = {}, {}, {}, {}
        for rank in range(workers):
            self.x[rank] = [np.ones(shape) for shape in SHAPES] if start is None else [a.copy() for a in start]
            self.begin(rank, 1 / workers)

    def begin(self, rank, weight):
        self.w[rank], self.mail[rank] = weight, []
        self.random[rank] = np.random.default_rng((RULE.seed, rank))

    def join(self, rank):
        """Take half of the weight of the heaviest, what has come for that one included."""
        total = {each: self.w[each] + sum(w for _, w in self.mail[each]) for each in self.w}
        donor = max(total, key=total.get)
        assert sum(weight > 0.999 * total[donor] for weight in total.values()) == 1, "else any of them gives it"
        self.x[rank] = self.mean([donor])
        self.w[donor] /= 2
        self.mail[donor] = [(x, w / 2) for x, w in self.mail[donor]]
        self.begin(rank, total[donor] / 2)

    def die(self, rank):
        for state in (self.x, self.w, self.mail):
            del state[rank]

    def leave(self, rank):
        last, weight = self.mean([rank]), self.w[rank] + sum(w for _, w in self.mail[rank])
        self.die(rank)
        self.mail[min(self.w)].append((last, weight))

    def mean(self, ranks=None):
        """Return the mean by weight of what these workers have, and of what has come for them."""
        ranks = self.w if ranks is None else ranks
        models = [each for rank in ranks for each in ((self.x[rank], self.w[rank]), *self.mail[rank])]
        total = sum(w for _, w in models)
        return [sum(w * x[i] for x, w in models) / total for i in range(len(SHAPES))]

    def synchronize(self, turn, rank):
        x = [a + np.random.default_rng([turn, a.size]).standard_normal(a.shape) for a in self.x[rank]]
        for theirs, w in self.mail[rank]:
            total = self.w[rank] + w
            x = [(self.w[rank] * a + w * b) / total for a, b in zip(x, theirs)]
            self.w[rank] = total
        self.x[rank], self.mail[rank] = x, []
        if self.random[rank].random() < RULE.probability:
            others = sorted(set(self.w) - {rank})
            to = others[int(self.random[rank].integers(len(others)))]
            self.w[rank] /= 2
            self.mail[to].append((x, self.w[rank]))

    def take_turns(self, found, turns):
        """Synchronize, and require the values that ``found``, by rank, holds of each turn."""
        for turn, rank in turns:
            self.synchronize(turn, rank)
            for name, arrays in (("x", self.x[rank]), ("c", self.mean())):
                for i, want in enumerate(arrays):
                    got = found[rank][f"{turn} {name} {i}"]
                    text = f"turn {turn} of rank {rank}: {name} {i}"
                    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12, err_msg=text)


def some_turns(ranks, first, count):
    return [(first + i, int(rank)) for i, rank in enumerate(np.random.default_rng(first).choice(ranks, count))]


def load(folder, *ranks, name=""):
    return {rank: np.load(folder / f"{name}{rank}.npz") for rank in ranks}


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_by_turns_follow_the_paper(run_job, tmp_path, workers):
    turns = some_turns(workers, 0, 14)
    run_job(script_path("gossip_turns"), workers, args=[json.dumps(turns)]).require_success()
    Simulation(workers).take_turns(load(tmp_path, *range(workers)), turns)


@pytest.mark.parametrize("end", ["leaves", "killed"])
def test_the_weight_of_one_that_leaves_is_given_away_and_that_of_the_dead_lost(run_job, tmp_path, end):
    of_three, of_two = some_turns(3, 0, 12), some_turns(2, 20, 8)
    outcome = run_job(script_path("gossip_one_ends"), 3, args=[json.dumps(of_three), json.dumps(of_two), end])
    ended = {exit.rank: exit.status for exit in outcome.result.exits}
    assert ended[0] == ended[1] == 0, outcome.logs
    simulation, found = Simulation(3), load(tmp_path, 0, 1, 2)
    simulation.take_turns(found, of_three)
    simulation.leave(2) if end == "leaves" else simulation.die(2)
    simulation.take_turns(found, of_two)


def test_a_late_worker_takes_half_of_a_weight(run_job, tmp_path):
    of_two, of_three, after = some_turns(2, 0, 9), some_turns([2], 20, 4), some_turns(2, 30, 6)
    run_job(
        script_path("gossip_late"), args=[json.dumps(of_two), json.dumps(of_three), json.dumps(after)]
    ).require_success()
    simulation, found = Simulation(2), load(tmp_path, 0, 1, 2)
    simulation.take_turns(found, of_two)
    simulation.join(2)
    simulation.take_turns(found, of_three)
    simulation.leave(2)
    simulation.take_turns(found, after)


def test_one_that_is_started_again_takes_half_of_a_weight(run_job, tmp_path):
    before, again, after = some_turns(3, 0, 10), some_turns([1], 20, 3), some_turns([0, 2], 30, 8)
    outcome = run_job(
        script_path("gossip_again"), 3, args=list(map(json.dumps, (before, again, after))), max_restarts=1
    )
    assert {exit.rank: exit.status for exit in outcome.result.exits} == {0: 0, 1: 0, 2: 0}, outcome.logs
    simulation, found = Simulation(3), load(tmp_path, 0, 1, 2)
    simulation.take_turns({**found, **load(tmp_path, 1, name="first")}, before)
    simulation.die(1)
    simulation.join(1)
    simulation.take_turns(found, again)
    simulation.leave(1)
    simulation.take_turns(found, after)


def test_a_resumed_job_goes_on_from_the_consensus(platoon, tmp_path):
    before, after = some_turns(2, 0, 8), some_turns(2, 20, 8)
    script = script_path("gossip_resumed")
    for job, turns in (("first", before), ("second", after)):
        done = platoon("launch", "-n", 2, "--resume", "kept", script, tmp_path, json.dumps(turns), job)
        assert done.returncode == 0, done.stdout + done.stderr
    simulation = Simulation(2)
    simulation.take_turns(load(tmp_path, 0, 1, name="first"), before)
    resumed = Simulation(2, simulation.mean())
    resumed.take_turns(load(tmp_path, 0, 1, name="second"), after)


def test_one_training_follows_the_other(run_job):
    run_job(script_path("gossip_two_trainings"), 3).require_success()


def test_there_is_no_center_to_change_and_copying_reaches_all(run_job):
    run_job(script_path("gossip_refused")).require_success()
