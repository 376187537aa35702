"""Rounds in fragments against NumPy, bit by bit; real launchers, the hosts are folders."""

import zlib

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.compression.codecs import codec_of
from platoon_base.compression.packing import Packing
from platoon_base.layout import Layout
from platoon_base.rules import DiLoCo, LocalSGD

pytestmark = pytest.mark.base

FRAGMENTS = 4


class ByHand:
    """One array, which is a fragment, of all workers; and its center, which hosts with residuals have alike."""

    def __init__(self, rule, start, hosts, codec):
        self.rule, self.hosts, self.codec = rule, hosts, codec
        self.center = start.copy()
        self.state = tuple(np.zeros_like(start) for _ in rule.center_state)
        self.own = [start.copy() for host in hosts for _ in host]
        self.residuals = [np.zeros_like(start) for _ in hosts]
        self.sent = None
        self.part = 0.0

    def contribute(self):
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
        self.sent = total / np.float32(len(self.own)), [own.copy() for own in self.own], self.part / FRAGMENTS
        self.part = 0.0

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
    arrays = [ByHand(rule, np.full(100_000, k, "f4"), hosts, codec) for k in range(FRAGMENTS)]
    said = [[] for _ in range(sum(workers))]
    number = 0

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
        for turn in range(FRAGMENTS if whole else 1):
            for array in arrays:
                array.part += 0.0 if turn else 0.5 if step in (3, 6) else 1.0
                array.complete()
            arrays[number % FRAGMENTS].contribute()
            number += 1
            if whole or not rule.overlap:
                arrays[(number - 1) % FRAGMENTS].complete()
        tell(step)
        if step == 8:
            for array in arrays:
                array.complete()
            tell("completed")
    for array in arrays:
        array.own = [array.center] * sum(workers)
    tell("copied")
    return said


RULES = [LocalSGD(fragments=4), DiLoCo(fragments=4), DiLoCo(0.5, 0.6, overlap=0.25, fragments=4)]
PLACES = [((2,), "none"), ((2, 1), "none"), ((1, 2), "int4"), ((1, 1), "topk(0.5)")]
# Each rule and each place at least once.
AT_LEAST = [(RULES[0], *PLACES[0]), (RULES[1], *PLACES[1]), (RULES[2], *PLACES[2]), (RULES[2], *PLACES[3])]
OTHERS = [(rule, *place) for rule in RULES for place in PLACES if (rule, *place) not in AT_LEAST]


@pytest.mark.parametrize(
    ("rule", "workers", "codec"),
    [*AT_LEAST, *(pytest.param(*each, marks=pytest.mark.product) for each in OTHERS)],
    ids=repr,
)
def test_each_round_is_of_one_fragment_and_a_whole_one_of_all(hosts, rule, workers, codec):
    options = [] if codec == "none" else ["--hosts-compression", codec]
    done = hosts.run(script_path("fragments"), *options, workers=workers, args=[repr(rule)])
    assert done == [0] * len(workers), hosts.output(0)
    expected = by_hand(rule, workers, codec_of(codec))
    hosts_of_ranks = [host for host, count in enumerate(workers) for _ in range(count)]
    found = [hosts.said(rank, host) for rank, host in enumerate(hosts_of_ranks)]
    assert found == expected
    for step in (6, 11, "copied"):
        assert len({str([line for line in each if line[0] == step]) for each in found}) == 1


@pytest.mark.parametrize("workers", [(2,), (1, 1)], ids=repr)
def test_a_center_begins_with_the_fragment_of_the_next_round(hosts, workers):
    assert hosts.run(script_path("fragments_again"), workers=workers) == [0] * len(workers), hosts.output(0)


@pytest.mark.parametrize("rule", ["LocalSGD(fragments=4)", "LocalSGD(overlap=0.25, fragments=4)"])
def test_a_position_is_that_of_what_all_fragments_have(run_job, rule):
    run_job(script_path("fragments_position"), args=[rule]).require_success()


@pytest.mark.parametrize("workers", [(2,), (1, 1)], ids=repr)
def test_rounds_of_all_fragments_go_together_with_those_in_the_middle_of_an_epoch(hosts, workers):
    """Rounds 5 to 8 are those of the end on rank 0; its rounds 9 and 10 rank 1 makes alone."""
    assert hosts.run(script_path("fragments_uneven"), workers=workers) == [0] * len(workers), hosts.output(0)
    assert [hosts.said(rank, host) for rank, host in enumerate((0, len(workers) - 1))] == [[[5.5, 5.0, 5.0, 5.0]]] * 2


@pytest.mark.parametrize(
    ("rule", "codec"), [("LocalSGD(fragments=4)", "int4"), ("LocalSGD(overlap=0.25, fragments=4)", "none")]
)
def test_a_worker_that_comes_again_goes_on_with_the_others(hosts, rule, codec):
    options = ["--max-restarts", "1", "--hosts-compression", codec]
    script = script_path("fragments_again_after_a_kill")
    assert hosts.run(script, *options, workers=(2, 1), args=[rule]) == [0, 0], hosts.output(0)
    found = [hosts.said(rank, host)[-1] for rank, host in ((0, 0), (1, 0), (2, 1))]
    # A round that one host makes alone reaches the other one behind it; in the last ones there are residuals alone.
    for one in found:
        assert one == (found[0] if codec == "none" else pytest.approx(found[0], rel=1e-5))
    assert all(8 < value < 13 for value in found[0][:4])
    assert found[0][4]


def test_what_is_not_finite_stays_out_of_its_fragment(run_job):
    found = run_job(script_path("fragments_nonfinite")).require_success().reported
    assert found["x 0"] == found["x 1"]
    assert found["least 0"] > 5


def test_a_job_may_go_on_with_another_number_of_fragments(platoon):
    script = script_path("fragments_saved")
    for rule, start in (("LocalSGD(fragments=4)", 0), ("LocalSGD(fragments=2)", 6), ("LocalSGD()", 12)):
        done = platoon("launch", "-n", 2, "--checkpoint-every", 60, "--resume", "kept", script, rule, start)
        assert done.returncode == 0, done.stdout + done.stderr


def test_who_drops_what_was_learned_is_told_so(run_job):
    outcome = run_job(script_path("fragments_left")).require_success()
    assert [log.count("call sync_params(whole=True) before") for log in outcome.logs] == [1, 1], outcome.logs


def test_a_position_is_that_of_who_overwrote_the_center(run_job):
    outcome = run_job(script_path("fragments_position_overwritten")).require_success()
    told = [log.count("call sync_params(whole=True) before") for log in outcome.logs]
    assert told == [0, 1], outcome.logs


def test_each_round_of_a_whole_one_may_take_the_timeout(run_job):
    run_job(script_path("fragments_waits")).require_success()
