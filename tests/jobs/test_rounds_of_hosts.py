"""Rules by which workers wait for each other, bit by bit against NumPy, also in rounds that overlap.

Real launchers; the hosts are folders.
"""

import signal
import zlib

import numpy as np
import pytest
from courier_processes import couriers_of
from laboratory import until
from scripts_here import script_path

from platoon_base.compression.codecs import codec_of
from platoon_base.compression.packing import Packing
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout
from platoon_base.rules import DiLoCo, LocalSGD, SlowMo

pytestmark = pytest.mark.base

ARRAYS = 4


class ByHand:
    """One array of all workers, and its center, which hosts with residuals have alike."""

    def __init__(self, rule, start, hosts, codec):
        self.rule, self.hosts, self.codec = rule, hosts, codec
        self.center = start.copy()
        self.state = tuple(np.zeros_like(start) for _ in rule.center_state)
        self.own = [start.copy() for host in hosts for _ in host]
        self.residuals = [np.zeros_like(start) for _ in hosts]
        self.sent = None

    def contribute(self, part):
        """Take part in a round."""
        totals = []
        for host, residual in zip(self.hosts, self.residuals):
            total = np.zeros_like(self.center)
            for rank in host:
                total += self.own[rank] - self.center
            if self.codec is not None:
                packing = Packing(Layout.of([total]), self.codec)
                packing.pack([total], [residual], [residual], np.zeros(packing.nbytes, "u1"))
            totals.append(total)
        total = totals[0]
        for other in totals[1:]:
            total += other
        self.sent = total / np.float32(len(self.own)), [own.copy() for own in self.own], part

    def complete(self):
        if self.sent is None:
            return
        mean, values, part = self.sent
        self.rule.step(mean, self.center, self.state, part)
        for own, value in zip(self.own, values):
            own[...] = np.where(own == value, self.center, self.center + (own - value))
        self.sent = None


def by_hand(rule, workers, codec=None):
    """Return for each worker what the script says."""
    ranks = iter(range(sum(workers)))
    hosts = [[next(ranks) for _ in range(count)] for count in workers]
    rule = rule.resolved(sum(workers))
    arrays = [ByHand(rule, np.full(100_000, k, "f4"), hosts, codec) for k in range(ARRAYS)]
    said = [[] for _ in range(sum(workers))]

    def tell(what):
        for rank, lines in enumerate(said):
            values = [array.own[rank] for array in arrays]
            lines.append([what, *([float(own[0]), float(own[-1]), zlib.crc32(own)] for own in values)])

    for step in range(1, 12):
        for k, array in enumerate(arrays):
            for rank, own in enumerate(array.own):
                own[0] += np.float32((rank + 1) * step / 7 + k)
                own[1:] += np.float32((rank - 0.3) * step * k)
        whole = step in (6, 11)
        for array in arrays:
            array.complete()
            array.contribute(0.5 if step in (3, 6) else 1.0)
            if whole or not rule.overlap:
                array.complete()
        tell(step)
        if step == 8:
            for array in arrays:
                array.complete()
            tell("completed")
    for array in arrays:
        array.complete()
        array.own = [array.center] * sum(workers)
    tell("copied")
    return said


RULES = [LocalSGD(), SlowMo(), DiLoCo(overlap=0.5), LocalSGD(overlap=0.25)]
PLACES = [((2,), "none"), ((2, 1), "none"), ((1, 2), "int4"), ((1, 1), "topk(0.5)")]
# Each rule and each place at least once.
AT_LEAST = [(0, 1), (1, 2), (2, 0), (2, 2), (3, 1), (3, 3)]


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        pytest.param(rule, place, marks=[pytest.mark.rare] * ((i, k) not in AT_LEAST))
        for i, rule in enumerate(RULES)
        for k, place in enumerate(PLACES)
    ],
    ids=repr,
)
def test_rounds_have_the_bits_of_one_process(hosts, rule, place):
    workers, codec = place
    options = [] if codec == "none" else ["--hosts-compression", codec]
    done = hosts.run(script_path("rounds_of_hosts_rounds"), *options, workers=workers, args=[repr(rule)])
    assert done == [0] * len(workers), hosts.output(0)
    expected = by_hand(rule, workers, codec_of(codec))
    hosts_of_ranks = [host for host, count in enumerate(workers) for _ in range(count)]
    found = [hosts.said(rank, host) for rank, host in enumerate(hosts_of_ranks)]
    assert found == expected
    for step in (6, 11, "copied"):
        assert len({str([line for line in each if line[0] == step]) for each in found}) == 1


def test_what_a_round_of_one_host_has_learned_is_not_lost_by_one_of_another(hosts):
    script = script_path("rounds_of_hosts_rounds_of_one_host_each")
    assert hosts.run(script, workers=(1, 1), args=["LocalSGD()"]) == [0, 0], hosts.output(0)
    # Rank 0 did not begin from the center that has the 100, so its own step does not count, as on one host.
    assert hosts.said(0, 0)[-1] == hosts.said(1, 1)[-1] == [[104.0] * 4]


@pytest.mark.parametrize("rule", ["LocalSGD()", "LocalSGD(overlap=0.25)"])
def test_hosts_that_had_no_part_in_the_last_rounds_have_their_center_before_an_evaluation(hosts, rule):
    script = script_path("rounds_of_hosts_last_rounds_of_one_host")
    assert hosts.run(script, workers=(1, 1), args=[rule]) == [0, 0], hosts.output(0)
    (first,), (second,) = hosts.said(0, 0), hosts.said(1, 1)
    assert first == second
    assert rule != "LocalSGD()" or first == [[4.0] * 8]


GOES_ON = script_path("rounds_of_hosts_goes_on")


def rounds_of(hosts, rank, host):
    if not (hosts.folder / f"logs{host}" / f"rank{rank}.log").exists():
        return []
    return [line for line in hosts.said(rank, host) if line[0] == "round"]


def until_more_rounds(hosts, rank, host, more=5):
    there = len(rounds_of(hosts, rank, host))
    until(lambda: len(rounds_of(hosts, rank, host)) >= there + more, lambda: hosts.output(0), 100)


@pytest.mark.promise
def test_the_others_go_on_without_a_host_that_is_killed_and_it_may_return(hosts):
    """The progress of each round is the mean of what the workers that take part have added: 1, 2 and 3."""
    args = [str(hosts.folder)]
    for host, count in enumerate((2, 1)):
        hosts.start(GOES_ON, "--allow-failures", host=host, workers=count, args=args)
    hosts.until("logs0/rank0.log", "round")
    hosts.launchers[1].kill()
    hosts.until("h0.out", "with workers 2: it")
    until_more_rounds(hosts, 0, 0)
    hosts.launchers.pop(1).wait()
    (hosts.folder / "logs1" / "rank2.log").unlink()
    hosts.start(GOES_ON, "--allow-failures", host=1, args=args, environment={"AGAIN": "1"})
    hosts.until("h0.out", "has returned with workers 2")
    hosts.until("logs1/rank2.log", "round")
    until_more_rounds(hosts, 2, 1)
    (hosts.folder / "enough").touch()
    assert hosts.wait() == [0, 0], hosts.output(0) + hosts.output(1)
    first, second = (rounds_of(hosts, rank, 0) for rank in (0, 1))
    common = min(len(first), len(second)) - 1  # of the last one some may have seen the end before
    assert [line[1:3] for line in first][:common] == [line[1:3] for line in second][:common]
    steps = [after - before for _, before, after, _ in first[:common]]
    assert steps[0] == steps[-1] == 2.0
    assert 1.5 in steps
    assert set(steps) == {1.5, 2.0}
    ends = [line[2] for line in first]
    back = [line[2] for line in rounds_of(hosts, 2, 1) if line[2] <= ends[-1]]  # it may see the end some rounds later
    assert back
    assert set(back) <= set(ends)
    assert max(line[3] for line in first) < 10.0


def test_a_function_may_not_change_the_center_of_its_own_host_alone(hosts):
    code = script_path("rounds_of_hosts_a_function_may_not_change_the_center")
    assert hosts.run(code, workers=(1, 1)) == [0, 0], hosts.output(0)
    for rank in (0, 1):
        (line,) = hosts.said(rank, rank)
        assert "copy_to_global" in line[0]


def test_moments_are_not_shared_in_rounds_that_overlap():
    with pytest.raises(ConfigurationError, match="second moments might become negative"):
        LocalSGD(moments=True, overlap=0.5)
    for overlap in (1, -0.1, True, None):
        with pytest.raises(ConfigurationError, match=f"got overlap={overlap}: it is the part of the period"):
            DiLoCo(overlap=overlap)


def test_workers_train_on_while_their_round_is_exchanged(hosts):
    """A courier that stands still holds up the round, and not the workers."""
    for host in (0, 1):
        hosts.start(script_path("rounds_of_hosts_overlap_go_on"), host=host)
    hosts.until("logs0/rank0.log", "shared")
    (courier,) = couriers_of(hosts.launchers[1].pid)
    courier.send_signal(signal.SIGSTOP)
    (hosts.folder / "stopped").touch()
    for host in (0, 1):
        hosts.until(f"logs{host}/rank{host}.log", "went on")
        hosts.until(f"logs{host}/rank{host}.log", "waited")
    courier.send_signal(signal.SIGCONT)
    (hosts.folder / "continued").touch()
    assert hosts.wait() == [0, 0], hosts.output(0) + hosts.output(1)
    for rank in (0, 1):
        assert hosts.said(rank, rank) == [["shared"], ["went on", 2 + rank], ["waited"], [1.5 + 1]]


def test_the_others_complete_a_round_whose_worker_was_killed_meanwhile(run_job):
    outcome = run_job(script_path("rounds_of_hosts_overlap_one_is_killed"), workers=3)
    assert [exit.status for exit in outcome.result.exits if exit.rank < 2] == [0, 0], outcome.logs
    assert outcome.reported == {"x 0": 6.5, "x 1": 6.5}


def test_a_worker_that_leaves_completes_its_round_first(platoon, tmp_path):
    script = script_path("rounds_of_hosts_overlap_leave")
    platoon("launch", "-n", 2, "--checkpoint-every", 60, "--resume", "kept", script).require()
    with np.load(max((tmp_path / "kept").glob("*.npz"))) as checkpoint:
        np.testing.assert_array_equal(checkpoint["center/0"], np.full(10, 1.5))


def test_who_takes_the_center_over_again_goes_on_from_there(run_job):
    outcome = run_job(script_path("rounds_of_hosts_overlap_restore")).require_success()
    assert outcome.reported["x 0"] == outcome.reported["x 1"]


def test_a_copy_of_the_center_completes_the_round_first(run_job):
    outcome = run_job(script_path("rounds_of_hosts_overlap_copy")).require_success()
    assert outcome.reported == dict.fromkeys(["copied 0", "copied 1", "x 0", "x 1"], 1.5)
