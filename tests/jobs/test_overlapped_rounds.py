"""Rounds that overlap with training, against NumPy; real launchers, the hosts are folders."""

import signal

import numpy as np
import pytest
from courier_processes import couriers_of
from scripts_here import script_path

from platoon_base.errors import ConfigurationError
from platoon_base.rules import DiLoCo, LocalSGD

pytestmark = pytest.mark.base

ROUNDS = script_path("overlapped_rounds")


class ByHand:
    """One array of all workers, and its center."""

    def __init__(self, rule, center, progress, workers):
        self.rule = rule
        self.progress = progress
        self.center = center
        self.state = tuple(np.zeros_like(center) for _ in rule.center_state)
        self.own = [center.copy() for _ in range(workers)]
        self.sent = None

    def train(self, step):
        for rank, own in enumerate(self.own):
            own += self.progress(rank, step)

    def complete(self):
        if self.sent is not None:
            mean, part = self.sent[0] - self.center, self.sent[2]
            self.rule.step(mean, self.center, self.state, part)
            for own, sent in zip(self.own, self.sent[1]):
                own += self.center - sent
        self.sent = None

    def sync(self, part):
        self.complete()
        self.sent = np.mean(self.own, axis=0), [own.copy() for own in self.own], part


def by_hand(rule, workers, last):
    """Return for each worker what `ROUNDS` says."""
    progress = [lambda rank, step: rank + step, lambda rank, step: (rank - 1) * step / 8]
    arrays = [ByHand(rule, c, p, workers) for c, p in zip([np.zeros(1), np.full(6, 4.0)], progress)]
    lines = []

    def tell(what):
        lines.append([(what, *(array.own[rank].tolist() for array in arrays)) for rank in range(workers)])

    for step in range(1, 8):
        for array in arrays:
            array.train(step)
            array.sync(0.5 if step == 3 else 1.0)
        tell(step)
        if step == 5:
            for array in arrays:
                array.complete()
            tell("completed")
    for array in arrays:
        if array is arrays[0]:
            for rank, own in enumerate(array.own):
                own += 100 * rank
        array.complete()
        if last != "average_hosts":
            array.own = [array.center] * workers
    tell({"center_params": "center"}.get(last, last))
    return list(zip(*lines))


@pytest.mark.parametrize(
    ("rule", "workers", "last"),
    [
        (LocalSGD(overlap=0.5), (2, 1), "copy_to_local"),
        (DiLoCo(overlap=0.5), (1, 2), "center_params"),
        (DiLoCo(overlap=0.5), (3,), "average_hosts"),
    ],
    ids=repr,
)
def test_each_round_counts_one_period_later(hosts, rule, workers, last):
    expected = by_hand(rule, sum(workers), last)
    assert hosts.run(ROUNDS, workers=workers, args=[repr(rule), last]) == [0] * len(workers), hosts.output(0)
    hosts_of_ranks = [host for host, count in enumerate(workers) for _ in range(count)]
    found = [hosts.said(rank, host) for rank, host in enumerate(hosts_of_ranks)]
    for own, by_equations in zip(found, expected):
        for line, (what, x, y) in zip(own, by_equations):
            assert (line[0], line[4]) == (what, True)
            np.testing.assert_allclose(line[1:3] + line[3], x * 2 + y, rtol=1e-5)
        assert len(own) == len(by_equations)
    completed = [next(line for line in own if line[0] == "completed") for own in found]
    assert completed == [completed[0]] * len(found)  # bit by bit


def test_moments_are_not_shared_in_rounds_that_overlap():
    with pytest.raises(ConfigurationError, match="second moments might fall below 0"):
        LocalSGD(moments=True, overlap=0.5)
    for overlap in (1, -0.1, True, None):
        with pytest.raises(ConfigurationError, match=f"got overlap={overlap}: it is the part of the period"):
            DiLoCo(overlap=overlap)


def test_workers_train_on_while_their_round_is_exchanged(hosts):
    """A courier that stands still holds up the round, and not the workers."""
    for host in (0, 1):
        hosts.start(script_path("overlapped_rounds_go_on"), host=host)
    hosts.until("logs0/rank0.log", "shared")
    (courier,) = couriers_of(hosts.launchers[1].pid)
    courier.send_signal(signal.SIGSTOP)
    (hosts.folder / "stopped").touch()
    for host in (0, 1):
        hosts.until(f"logs{host}/rank{host}.log", "went on")
        hosts.until(f"logs{host}/rank{host}.log", "waited")
    courier.send_signal(signal.SIGCONT)
    (hosts.folder / "continued").touch()
    assert hosts.wait(40) == [0, 0], hosts.output(0) + hosts.output(1)
    for rank in (0, 1):
        assert hosts.said(rank, rank) == [["shared"], ["went on", 2 + rank], ["waited"], [1.5 + 1]]


def test_the_others_complete_a_round_whose_worker_was_killed_meanwhile(run_job):
    outcome = run_job(script_path("overlapped_rounds_one_is_killed"), workers=3)
    assert [exit.status for exit in outcome.result.exits if exit.rank < 2] == [0, 0], outcome.logs
    assert outcome.reported == {"x 0": 6.5, "x 1": 6.5}


def test_a_worker_that_leaves_completes_its_round_first(platoon, tmp_path):
    done = platoon(
        "launch", "-n", 2, "--checkpoint-every", 60, "--resume", "kept", script_path("overlapped_rounds_leave")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with np.load(max((tmp_path / "kept").glob("*.npz"))) as checkpoint:
        np.testing.assert_array_equal(checkpoint["center/0"], np.full(10, 1.5))


def test_who_comes_late_to_a_round_under_way_holds_nobody_up(hosts):
    assert hosts.run(script_path("overlapped_rounds_uneven"), workers=(2, 1)) == [0, 0], hosts.output(0)
    assert [hosts.said(rank, host) for rank, host in ((0, 0), (1, 0), (2, 1))] == [[[3.0]]] * 3


def test_a_worker_that_comes_again_while_a_round_is_under_way_goes_on_with_the_others(hosts):
    script = script_path("overlapped_rounds_again")
    assert hosts.run(script, "--max-restarts", "1", workers=(2, 1)) == [0, 0], hosts.output(0)
    assert [hosts.said(rank, host)[-1] for rank, host in ((0, 0), (1, 0), (2, 1))] == [[2.0]] * 3


def test_who_takes_the_center_over_again_goes_on_from_there(run_job):
    outcome = run_job(script_path("overlapped_rounds_restore")).require_success()
    assert outcome.reported["x 0"] == outcome.reported["x 1"]


def test_a_position_is_that_of_what_the_center_has(run_job):
    run_job(script_path("overlapped_rounds_position")).require_success()


def test_a_worker_that_cannot_complete_its_round_leaves_all_the_same(run_job):
    outcome = run_job(script_path("overlapped_rounds_unreadable")).require_success()
    assert all("so the center lacks it: the context is gone" in log for log in outcome.logs)
