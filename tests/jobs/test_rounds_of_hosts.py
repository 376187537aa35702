"""Rules by which workers wait for each other, in jobs on several hosts; real launchers, the hosts are folders."""

import signal
import time

import numpy as np
import pytest
from scripts_here import behind, script_path

from platoon_base.rules import DiLoCo, LocalSGD, SlowMo

pytestmark = pytest.mark.base


def script(text):
    return behind("hosts_preamble", text)


ROUNDS = script_path("rounds_of_hosts_rounds")


def by_hand(rule, workers):
    """Return what `ROUNDS` says, computed in one process."""
    centers = [np.zeros(1, "float32"), np.full(6, 4.0)]
    states = [tuple(np.zeros_like(c) for _ in rule.center_state) for c in centers]
    rule = rule.resolved(workers)
    lines = []
    for step in range(1, 6):
        part = 0.5 if step == 3 else 1.0
        for i, (center, state) in enumerate(zip(centers, states)):
            own = [center + np.float32(r + step) if i == 0 else center * (1 + r / 8) for r in range(workers)]
            rule.step(np.mean([each - center for each in own], axis=0, dtype=center.dtype), center, state, part)
        lines.append([step, float(centers[0][0]), float(centers[0][0]), centers[1].tolist(), True])
    return lines


@pytest.mark.parametrize("rule", [LocalSGD(), SlowMo(), DiLoCo()], ids=repr)
@pytest.mark.parametrize("workers", [(2, 2), (1, 3, 1)], ids=repr)
def test_all_workers_of_all_hosts_make_the_steps_of_one_process(hosts, rule, workers):
    expected = by_hand(rule, sum(workers))
    assert hosts.run(ROUNDS, workers=workers, args=[repr(rule)]) == [0] * len(workers), hosts.output(0)
    first = 0
    everyone = []
    for host, count in enumerate(workers):
        everyone += [hosts.said(rank, host) for rank in range(first, first + count)]
        first += count
    for lines in everyone:
        assert lines == everyone[0]  # bit by bit
        for line, other in zip(lines, expected):
            assert (line[0], line[4]) == (other[0], True)
            np.testing.assert_allclose(line[1:3] + line[3], other[1:3] + other[3], rtol=1e-6)


def test_what_a_round_of_one_host_has_learned_is_not_lost_by_one_of_another(hosts):
    script = script_path("rounds_of_hosts_rounds_of_one_host_each")
    assert hosts.run(script, workers=(1, 1), args=["LocalSGD()"]) == [0, 0], hosts.output(0)
    # Rank 0 did not begin from the center that has the 100, so its own step does not count, as on one host.
    assert hosts.said(0, 0)[-1] == hosts.said(1, 1)[-1] == [[104.0] * 4]


@pytest.mark.parametrize("rule", ["LocalSGD()", "LocalSGD(overlap=0.25, fragments=4)"])
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
    deadline = time.monotonic() + 30
    while len(rounds_of(hosts, rank, host)) < there + more:
        assert time.monotonic() < deadline, hosts.output(0) + hosts.output(1)
        time.sleep(0.01)


def test_the_others_go_on_without_a_host_that_is_killed_and_it_may_return(hosts):
    """The progress of each round is the mean of what the workers that take part have added: 1, 2 and 3."""
    args = [str(hosts.folder)]
    for host, count in enumerate((2, 1)):
        hosts.start(GOES_ON, "--allow-failures", host=host, workers=count, args=args)
    hosts.until("logs0/rank0.log", "round")
    hosts.launchers[1].kill()
    hosts.until("h0.out", "is lost, with workers 2")
    until_more_rounds(hosts, 0, 0)
    hosts.launchers.pop(1).wait()
    (hosts.folder / "logs1" / "rank2.log").unlink()
    hosts.start(GOES_ON, "--allow-failures", host=1, args=args, environment={"AGAIN": "1"})
    hosts.until("h0.out", "is back, with workers 2")
    hosts.until("logs1/rank2.log", "round")
    until_more_rounds(hosts, 2, 1)
    (hosts.folder / "enough").touch()
    assert hosts.wait(30) == [0, 0], hosts.output(0) + hosts.output(1)
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


def test_a_courier_that_is_killed_in_the_midst_of_rounds_loses_nothing(hosts):
    code = script_path("rounds_of_hosts_a_courier_that_is_killed_in_the_midst")
    assert hosts.run(code, workers=(1, 1)) == [0, 0], hosts.output(0) + hosts.output(1)
    assert "the courier of this host ended" in hosts.output(1)
    assert hosts.said(0, 0) == hosts.said(1, 1) == [[(step + 1) / 2, True] for step in range(60)]


@pytest.mark.parametrize("rule", ["LocalSGD()", "EASGD(0.5)"])
@pytest.mark.parametrize("writer", [0, 2])
def test_who_overwrites_the_center_does_so_on_all_hosts(hosts, rule, writer):
    code = script_path("rounds_of_hosts_who_overwrites_the_center_does")
    assert hosts.run(code, workers=(2, 1), args=[rule, str(writer)]) == [0, 0], hosts.output(0)
    for rank, host in enumerate((0, 0, 1)):
        assert hosts.said(rank, host) == [[5.0, True], [7.0, True]]


def test_a_function_may_not_change_the_center_of_its_own_host_alone(hosts):
    code = script_path("rounds_of_hosts_a_function_may_not_change_the_center")
    assert hosts.run(code, workers=(1, 1)) == [0, 0], hosts.output(0)
    for rank in (0, 1):
        (line,) = hosts.said(rank, rank)
        assert "copy_to_global" in line[0]


def test_a_host_that_stands_still_is_waited_for_and_a_round_has_a_deadline(hosts):
    code = script_path("rounds_of_hosts_a_host_that_stands_still_is_waited")
    for host in (0, 1):
        hosts.start(code, host=host)
    hosts.until("logs0/rank0.log", "trains")
    hosts.launchers[1].send_signal(signal.SIGSTOP)
    hosts.until("h0.out", "is silent since")
    hosts.launchers[1].send_signal(signal.SIGCONT)
    assert hosts.wait(40) == [0, 0], hosts.output(0) + hosts.output(1)
    assert hosts.said(0, 0)[-1] == hosts.said(1, 1)[-1] == [200.0]
