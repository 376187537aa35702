"""A worker dies, in each way and at each point: asynchronous training goes on, synchronous training tells the cause.

No process waits for a time: the moments are those at which the job's state shows what the others do.
"""

import logging
import random
import signal

import pytest
from scripts_here import script_path

pytestmark = [pytest.mark.base, pytest.mark.slow]

# How it dies, and the exit status. Who ends with status 0 without a goodbye is lost to the others all the same.
WAYS = {"killed": 128 + signal.SIGKILL, "exits": 0, "raises": 1}
ways = pytest.mark.parametrize("way", WAYS)

# Where the victim dies; the other two make the same steps as ever.
POINTS = [
    "before it joins",
    "before it shares",
    "while it makes the center",
    "with a stripe locked",
    "while others wait in reduce_metrics",
    "while it waits in a barrier",
    "in the validation",
]


@ways
@pytest.mark.parametrize("point", POINTS)
def test_asynchronous_training_goes_on_wherever_a_worker_dies(run_job, caplog, point, way):
    """Each of the others makes all of its steps, and every whole update is in the center, also those of the dead."""
    victim = (POINTS.index(point) + list(WAYS).index(way)) % 3
    with caplog.at_level(logging.INFO):
        outcome = run_job(script_path("deaths_asynchronous"), workers=3, args=[way, str(victim), point])
    others = [rank for rank in range(3) if rank != victim]
    assert outcome.reported == {str(rank): "ended well" for rank in others}, outcome.logs
    statuses = {ended.rank: ended.status for ended in outcome.result.exits}
    assert statuses == {victim: WAYS[way], **dict.fromkeys(others, 0)}
    if way != "raises":
        assert outcome.result.exits[0].rank == victim
    assert outcome.result.status == WAYS[way]
    assert ("RuntimeError: on purpose" in outcome.logs[victim]) == (way == "raises")
    first = {"killed": "killed by SIGKILL", "raises": "RuntimeError: on purpose"}
    assert outcome.result.first_failure.startswith(f"worker {victim}: {first[way]}" if way in first else "")
    assert bool(outcome.result.first_failure) == (way in first)
    assert outcome.result.stopped_by == "end of script"
    assert not outcome.result.interrupted
    if way == "exits" and point != "before it joins":
        assert f"rank {victim} ended without leaving the job: exit status 0" in caplog.text
        assert any(f"without the lost ranks [{victim}]" in outcome.logs[rank] for rank in others)


@ways
def test_barriers_and_sums_go_on_without_the_dead_and_all_agree_when(run_job, way):
    outcome = run_job(script_path("deaths_barriers_and_sums_go_on"), workers=4, args=[way, "1"])
    assert set(outcome.reported) == {"0", "3"}, outcome.logs
    assert len(set(outcome.reported.values())) == 1, "each sum tells all who took part"
    seen = outcome.reported["0"].split()
    assert seen[:11] == ["0123"] * 11
    assert seen[11:17] == ["023"] * 6
    assert seen[-1] == "03"
    assert sorted(set(seen)) == ["0123", "023", "03"]
    assert outcome.result.status == 137


@pytest.mark.parametrize(("way", "shares"), [*((way, True) for way in WAYS), ("killed", False)])
def test_a_late_joiner_may_die_too(run_job, way, shares):
    """Only its parent learns its status: to the job, one that ends without a goodbye has failed."""
    outcome = run_job(
        script_path("deaths_a_late_joiner_may_die_too"),
        args=[way, "2", str(script_path("deaths_late"))],
        environment={"SHARES": str(shares)},
    )
    expected = 40 + 1000 * shares
    assert outcome.reported == {"0": expected, "1": expected}, outcome.logs
    assert ("RuntimeError: on purpose" in outcome.logs[0]) == (way == "raises"), outcome.logs[0]
    exits = {ended.rank: ended.status for ended in outcome.result.exits}
    said_goodbye = way == "raises"  # its interpreter does so on its way out
    assert exits == {0: 0, 1: 0, 2: 0 if said_goodbye else 1}
    assert outcome.result.status == exits[2]


@ways
@pytest.mark.parametrize("seed", range(4))
def test_synchronous_training_ends_with_the_rank_the_device_the_cause_and_the_log(run_job, tmp_path, seed, way):
    draw = random.Random(seed)
    moment = ["between calls", "while it waits", "anywhere", "between calls"][seed]
    victim, step, size = draw.randrange(3), draw.randrange(1, 40), draw.choice([3, 5000, 300_000])
    outcome = run_job(
        script_path("deaths_synchronous"), workers=3, args=[way, str(victim), str(step), moment, str(size)]
    )
    others = [rank for rank in range(3) if rank != victim]
    statuses = {ended.rank: ended.status for ended in outcome.result.exits}
    assert statuses == {victim: WAYS[way], **dict.fromkeys(others, 0)}, outcome.logs
    assert outcome.result.status == WAYS[way]
    assert ("RuntimeError: on purpose" in outcome.logs[victim]) == (way == "raises")
    assert outcome.result.seconds < 60, "the deadline of a call is not waited for"
    assert set(outcome.reported) == {str(rank) for rank in others} | {f"step {rank}" for rank in others}, outcome.logs
    cause = {"killed": "killed by SIGKILL", "exits": "exit status 0", "raises": "exit status 1"}[way]
    for rank in others:
        text = outcome.reported[str(rank)]
        # Who dies within a call may have given its part of that one.
        assert moment == "anywhere" or outcome.reported[f"step {rank}"] - step in (0, moment == "while it waits")
        assert f"rank {victim}" in text
        if way == "raises" and "ended with RuntimeError('on purpose')" in text:
            assert moment != "between calls"  # it told so itself, from within a call
            continue
        for part in ("(cpu, ", cause, f"see {tmp_path / f'rank{victim}.log'}"):
            assert part in text, (part, text)
