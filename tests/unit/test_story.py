"""The phases of a rank, the one table of how they change, and the story of what has changed in a job."""

import re

import pytest
from asking import Job, hello, total

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import SendReply
from platoon_base.coordination.roster import TRANSITIONS, Event, Phase, Roster
from platoon_base.coordination.story import Story
from platoon_base.sharding import START
from platoon_base.system.environment import STRICT

pytestmark = pytest.mark.base


def barrier(name):
    return msg.Barrier(name=name, timeout_s=10.0)


def changes(story):
    """What the story says, without times."""
    return [entry.line.split("  ", 1)[1] for entry in story.entries]


# The table.


def test_a_phase_is_expected_present_or_gone():
    for phase in Phase:
        assert phase.present + phase.gone + phase.label.startswith("expected") == 1
        assert not (phase.awaited and phase.gone)
        assert not phase.shares or phase.present


def test_all_phases_can_come_about():
    found = {Phase.EXPECTED}
    for _ in Phase:
        found |= {table[phase] for table in TRANSITIONS.values() for phase in found if phase in table}
    assert found == set(Phase)


def test_what_is_not_possible_raises_in_tests():
    roster = Roster(1, 0)
    with pytest.raises(RuntimeError, match="rank 0 shared the center, which is expected"):
        roster.move(roster[0], Event.SHARE)


def test_what_is_not_possible_is_recorded_and_changes_nothing(monkeypatch):
    monkeypatch.delenv(STRICT)
    roster = Roster(1, 0)
    assert isinstance(roster.join(hello(rank=0), b"a"), msg.Welcome)
    roster.readmit(0, START, 0)
    assert roster[0].phase is Phase.JOINED
    assert roster.of_peer(b"a") is roster[0]
    assert changes(roster.story)[-1] == "rank 0: joined -> not possible: is to come again"


# The story.


def test_like_changes_of_several_are_one():
    story = Story(lambda: 0.0)
    for rank in (2, 0, 1):
        story.add("rank", [rank], "joined", "left")
    story.add("rank", [0], "left", "lost", "killed by\nSIGKILL")
    story.add("courier", [1], "", "left out")
    assert changes(story) == [
        "ranks 0, 1, 2: joined -> left",
        "rank 0: left -> lost (killed by SIGKILL)",
        "courier of host 1: left out",
    ]


def test_older_changes_are_dropped_and_counted():
    story = Story()
    for i in range(1000):
        story.add("rank", [i], "", f"change {i}", "a" * 10_000)
    kept = story.entries
    assert len(kept) == 401
    assert changes(story)[0] == "job: 600 earlier events were dropped"
    assert kept[1].after == "change 600"
    assert max(len(entry.line) for entry in kept) < 300


def test_an_error_shows_the_latest_of_those_concerned():
    story = Story()
    for i in range(20):
        story.add("rank", [i % 2], "", f"change {i}", "a" * 200)
    story.add("host", [1], "", "lost")
    story.add("host", [0], "", "silent")
    story.add("job", [], "", "stops")
    heading, *lines = story.tail([1], [1]).strip().splitlines()
    assert heading == "What happened to them (`platoon jobs --story` shows all):"
    shown = [line.split(": ")[1].split(" (")[0] for line in lines]
    assert shown == [*(f"change {i}" for i in range(1, 20, 2)), "lost", "stops"]
    assert max(map(len, lines)) < 100


# What the coordinator records, and shows with its errors.


def test_the_life_of_a_worker_that_is_started_again():
    job = Job(2).join(0, 1)
    job.coordinator.worker_ended(1, lost=True, why="killed by SIGKILL")
    job.coordinator.readmit(1, START, "restart 1 of 2")
    job.join(1)
    job.ask(1, total())
    job.ask(0, total())
    job.ask(1, msg.Leave())
    assert [line for line in changes(job.coordinator.story) if "1" in line.partition(":")[0]] == [
        "ranks 0, 1: expected -> joined (process 4711 on here)",
        "rank 1: joined -> lost (killed by SIGKILL)",
        "rank 1: lost -> expected late (restart 1 of 2)",
        "rank 1: expected late -> joined late (process 4711 on here)",
        "rank 1: joined late -> joined",
        "rank 1: joined -> left",
    ]


def refusals(actions):
    assert all(isinstance(action, SendReply) and isinstance(action.reply, msg.Failure) for action in actions)
    return [action.reply for action in actions]


def test_a_deadlock_shows_what_happened_before():
    job = Job(3).join(0, 1, 2)
    job.coordinator.worker_ended(2, lost=True, why="exit status 1")
    job.ask(0, barrier("a"))
    first, second = refusals(job.ask(1, barrier("b")))
    assert first is second, "logged once"
    head, *lines = first.message.splitlines()
    assert head.startswith("all workers wait, but in different calls")
    assert re.search("ranks 0, 1, 2: expected -> joined", first.message)
    assert len(lines) == 4
    assert changes(job.coordinator.story)[-2:] == [
        "rank 0: waits in 'barrier a' -> deadlock",
        "rank 1: waits in 'barrier b' -> deadlock",
    ]


def test_a_timeout_shows_what_happened_to_the_missing():
    job = Job(4).join(0, 1, 2)
    job.ask(0, total(timeout_s=1.0))
    job.ask(1, total(timeout_s=1.0))
    first, second = refusals(job.tick(200.0))
    assert first is second
    _, heading, *lines = first.message.splitlines()
    assert heading.startswith("What happened to them")
    assert [line.strip().split("  ")[1] for line in lines] == [
        "job: starts (4 workers)",
        "ranks 0, 1, 2: expected -> joined (process 4711 on here)",
    ]
    assert changes(job.coordinator.story)[-1] == "ranks 0, 1: waits in 'epoch' -> timed out"
