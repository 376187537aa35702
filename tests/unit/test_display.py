"""What a person sees: live lines on a terminal, plain lines in a pipe, the summary."""

import io
import json
import math
import os
import pty
import re
import time

import pytest
from rich.console import Console

from platoon_base.cli.commands.jobs import listing
from platoon_base.cli.recent import Course, Recent, Track, sparkline
from platoon_base.cli.report import Display, is_live, open_console, shows_ascii_only, summary
from platoon_base.cli.run_files import tail, write_json
from platoon_base.cli.table import plain_line, table
from platoon_base.controller.outcome import Result, Snapshot, epochs_reached, first_failure, stop_cause
from platoon_base.controller.processes import Exit
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.shm.job_state import Progress
from platoon_base.worker_process.failure import Failure

pytestmark = pytest.mark.base


COMPILING = Progress(0, 0, 0, math.nan, 0.0, 0.0, 0.0, bound=1)
NOT_YET = COMPILING._replace(bound=0)


def steps(count, at, began=100.0, **fields):
    """The progress of a worker that has made so many steps, at a time of the clock, since another."""
    values = {"epoch": 1, "syncs": 0, "loss": 0.125, "sync_seconds": 0.05 * (at - began), **fields}
    return Progress(steps=count, started=began, updated=at, **values)


def snapshot(progress, reported=None, stop_reason=None, seconds=12.5, phases=None, devices=None):
    """A snapshot of workers with this progress; those that have none yet have not joined."""
    phases = phases or [Phase.EXPECTED if each is NOT_YET else Phase.TRAINING for each in progress]
    devices = devices or ["cpu"] * len(progress)
    roster = [Participant(i, True, phase=p, device=d) for i, (p, d) in enumerate(zip(phases, devices))]
    return Snapshot(roster, dict(enumerate(progress)), reported or {}, stop_reason, seconds)


def recent_of(*snapshots, now=None):
    recent = Recent()
    for each in snapshots:
        recent.take(each, max(p.updated for p in each.progress.values()) if now is None else now)
    return recent


def workers_of(recent, width=80, height=24):
    """The lines of the table below its heading."""
    lines = table(recent, width, height)
    return lines[next(i for i, line in enumerate(lines) if line.startswith("worker ")) + 1 :]


def terminal(**environment):
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=24, _environ=environment)


def test_a_rate_stays_when_the_clock_of_another_host_is_corrected():
    points = [steps(10 * second, 100.0 + second, began=100.0 - second / 1e4) for second in range(1, 6)]
    assert recent_of(*(snapshot([each]) for each in points)).rate(0) == pytest.approx(10.0)


def test_a_table_of_two_workers_and_the_reported_values():
    later = snapshot(
        [
            steps(200, 120.0, epoch=3, last_epoch=50, epoch_steps=10, steps_before_epoch=195, limit="patience 3/15"),
            COMPILING,
        ],
        {"valid_error": 0.0625, "note": "hi"},
        devices=["cpu", "cuda1"],
    )
    # 47 epochs of 10 steps, and 5 steps, at 10 a second.
    assert table(recent_of(later), 80, 24, "train.py") == [
        "train.py  2 workers: 1 on cpu and 1 on cuda  10.0 batches/s  12 s",
        "██░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░    5 %  about 48 s left  patience 3/15",
        "worker   state      epoch  batches/s   loss  in sync  last step",
        "0 cpu    training    3/50       10.0  0.125     5.0%        0 s",
        "1 cuda1  compiling      0          -      -        -          -",
        "valid_error 0.0625  note hi",
    ]
    assert table(recent_of(later), 80, 8)[-2:] == [
        "total 10.0 batches/s  12 s  patience 3/15  about 48 s left",
        "valid_error 0.0625  note hi",
    ]


def test_rates_are_those_of_the_latest_seconds():
    course = [snapshot([steps(100 * i, 100.0 + i)]) for i in range(1, 31)]
    slower = [snapshot([steps(3000 + 5 * i, 130.0 + i)]) for i in range(1, 13)]
    recent = recent_of(*course)
    assert recent.rate(0) == pytest.approx(100.0)
    for each in slower:
        recent.take(each, each.progress[0].updated)
    assert recent.rate(0) == pytest.approx(5.0)
    assert recent.sync_share(0) == pytest.approx(0.05)
    recent.take(slower[-1], 142.0 + 30.0)
    assert recent.rate(0) == 0.0, "steps have been due for long"


def test_a_worker_that_was_started_again_has_a_new_rate():
    recent = recent_of(snapshot([steps(100, 110.0)]), snapshot([steps(100, 110.0, steps_before_start=100, began=0.0)]))
    for i in (1, 2):
        recent.take(snapshot([steps(100 + 30 * i, 120.0 + i, began=120.0, steps_before_start=100)]), 120.0 + i)
    assert recent.rate(0) == pytest.approx(30.0)


def test_the_first_steps_count_neither_for_the_rate_nor_for_the_time_left():
    """A worker that compiles for 20 s in its first step, and makes ten steps a second then."""
    began = steps(0, 100.0, last_step=200)
    compiled = [steps(5 + 10 * i, 120.5 + i, last_step=200) for i in range(6)]
    recent = recent_of(snapshot([NOT_YET]), snapshot([began]), snapshot(compiled[:1]))
    assert math.isnan(recent.rate(0))
    assert math.isnan(recent.seconds_left())
    for each in compiled[1:]:
        recent.take(snapshot([each]), each.updated)
    assert recent.rate(0) == pytest.approx(10.0)
    assert recent.seconds_left() == pytest.approx(14.5)


def test_no_time_is_left_of_a_step_that_is_overdue_and_of_the_last_one():
    course = [snapshot([NOT_YET]), *(snapshot([steps(10 * i, 100.0 + i, last_step=100)]) for i in range(1, 10))]
    recent = recent_of(*course)
    assert recent.seconds_left() == pytest.approx(1.0)
    for late in (111.0, 200.0):
        recent.take(course[-1], late)
        assert math.isnan(recent.seconds_left())
    assert "left" not in plain_line(recent)[1]


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"last_step": 300}, 20.0),
        ({"last_epoch": 4, "epoch_steps": 50, "epoch": 2, "steps_before_epoch": 50}, 10.0),
        ({"last_epoch": 4, "epoch_steps": 50, "epoch": 2, "steps_before_epoch": 50, "last_step": 120}, 2.0),
        ({"last_epoch": 4}, math.nan),
        ({}, math.nan),
    ],
)
def test_the_time_left_follows_from_the_nearest_limit(limits, left):
    """100 steps in 10 s."""
    recent = recent_of(snapshot([steps(100, 110.0, **limits), NOT_YET]))
    assert recent.seconds_left() == pytest.approx(left, nan_ok=True)


def test_a_worker_in_a_long_collective_call_waits():
    waiting = [steps(5, 101.0), steps(5, 101.0, waits=7)]
    assert "waiting" not in "".join(table(recent_of(snapshot(waiting)), 80, 24))
    recent = recent_of(snapshot(waiting), now=102.0)
    recent.take(snapshot(waiting), 110.0)
    assert [line.split()[2] for line in workers_of(recent)[:2]] == ["training", "waiting"]
    recent.take(snapshot(waiting), 180.0)
    assert [recent.stalled_s(rank) for rank in range(2)] == [79.0, 0.0]


def test_a_worker_that_makes_no_step_is_seen_to_stall():
    """It is named, with the time, and nobody knows how long the job will take."""
    going = steps(400, 139.0, last_epoch=10, epoch_steps=100)
    stalled = steps(100, 110.0, last_epoch=10, epoch_steps=100)
    waits = steps(400, 110.0, waited_at=139.5)
    recent = recent_of(snapshot([going, stalled, waits]), now=140.0)
    states = [line[8:24].strip() for line in workers_of(recent)[:3]]
    assert states == ["training", "no step for 30 s", "waiting"]
    assert "left" not in "".join(table(recent, 80, 24))
    key, line = plain_line(recent)
    assert line.startswith("1 training, worker 1 no step for 30 s, 1 waiting")
    recent.take(recent.snapshot, 141.0)
    assert plain_line(recent)[0] == key  # no new line in a pipe for each second
    recent.take(recent.snapshot, 150.0)
    key, _ = plain_line(recent)
    recent.take(recent.snapshot, 165.0)
    assert plain_line(recent)[0] == key
    recent.take(recent.snapshot, 175.0)
    assert plain_line(recent)[0] != key


def test_a_pause_as_long_as_one_before_is_no_stall():
    recent = recent_of(snapshot([steps(100, 110.0)]), snapshot([steps(101, 140.0)]), snapshot([steps(200, 150.0)]))
    recent.take(recent.snapshot, 190.0)
    assert recent.stalled_s(0) == 0
    recent.take(recent.snapshot, 220.0)
    assert recent.stalled_s(0) == 70


@pytest.mark.parametrize(
    ("phase", "progress", "state"),
    [
        (Phase.EXPECTED, NOT_YET, "importing"),
        (Phase.JOINED, NOT_YET, "joined"),
        (Phase.JOINED, COMPILING, "compiling"),
        (Phase.JOINED, NOT_YET._replace(bound=2), "joined"),  # as a loop of PyTorch
        (Phase.TRAINING, NOT_YET, "compiling"),
        (Phase.TRAINING, COMPILING._replace(syncs=3), "training"),  # a plain loop that tells no steps
        (Phase.JOINED, steps(1, 101.0), "training"),
        (Phase.TRAINING, NOT_YET._replace(syncs=1), "training"),
        (Phase.LEFT, steps(1, 101.0), "finished"),
        (Phase.LOST, steps(1, 101.0), "lost"),
    ],
)
def test_states(phase, progress, state):
    assert workers_of(recent_of(snapshot([progress], phases=[phase])))[0].split()[2] == state


@pytest.mark.parametrize(("ended", "state"), [(False, "interrupted"), (True, "finished")])
def test_a_worker_that_leaves_as_the_job_is_interrupted_has_not_finished_yet(ended, state):
    shown = snapshot([steps(1, 101.0)], phases=[Phase.LEFT])._replace(interrupted=True)
    shown.participants[0].ended = ended
    assert workers_of(recent_of(shown))[0].split()[2] == state


@pytest.mark.parametrize("workers", [1, 4, 64, 256])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 10), (200, 50), (40, 8)])
def test_any_number_of_workers_fits_and_no_word_is_broken(workers, width, height):
    reported = {f"measure_{i}": i / 7 for i in range(30)} | {"note": "several words " * 20}
    progress = [steps(10 * i, 110.0, last_epoch=500, limit="patience 3/15") for i in range(1, workers)] + [COMPILING]
    lines = table(
        recent_of(snapshot(progress, reported, "no improvement in 15 evaluations")), width, height, "train.py"
    )
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    wide = table(recent_of(snapshot(progress, reported, "no improvement in 15 evaluations")), 1000, 1000, "train.py")
    words = {word.strip(",|.") for word in " ".join(wide).split()} | {
        "and",
        "more",
        "more:",
        "values",
        "total",
        "to",
        "",
    }
    text = " ".join(" ".join(lines).split())
    assert {word.strip(",|.") for word in text.split() if not re.fullmatch(r"[-.0-9/%█░▁]+,?", word)} <= words
    assert "1 compiling" in text or "compiling" in text, "a worker that does not train is among those shown"


def course_of(workers, seconds, **fields):
    """A job of several workers seen each second, in epochs of ten seconds; from the half on worker 1 is slower."""
    recent = Recent()
    for at in range(1, seconds + 1):
        made = [30 * at, 30 * min(at, seconds // 2) + 10 * max(0, at - seconds // 2)] + [30 * at] * (workers - 2)
        epoch = 1 + at // 10
        begun = [{"epoch": 1 + count // 300, "steps_before_epoch": count // 300 * 300} for count in made]
        limits = {"epoch_steps": 300, "last_epoch": 6, **fields}
        reported = {"loss": 1 / epoch, "val_loss": abs(epoch - 2.5), "val_accuracy": epoch / 10, "rate": 0.5}
        seen = snapshot([steps(n, 100.0 + at, **where, **limits) for n, where in zip(made, begun)], reported)
        recent.take(seen._replace(reported_in=dict.fromkeys(reported, epoch), seconds=float(at)), 100.0 + at)
    return recent


def test_courses_of_rates_and_values_are_drawn_with_the_best_ones():
    recent = course_of(2, 40)
    assert table(recent, 80, 24, "train.py") == [
        "train.py  2 workers on cpu  40.0 batches/s  40 s",
        "█████████████████░░░░░░░░░░░░░░░░░░░░░░░   44 %  about 51 s left",
        "worker  state     epoch  batches/s             loss  in sync  last step",
        "0 cpu   training    5/6       30.0  ████████  0.125     5.0%        0 s",
        "1 cpu   training    3/6       10.0  █▇▆▄▃▃▃▃  0.125     5.0%        0 s",
        "loss          0.2  █▄▂▁▁",
        "val_loss      2.5  ▅▁▁▅█                 best 0.5 in epoch 2",
        "val_accuracy  0.5  ▁▃▄▆█                 best 0.5 in epoch 5",
        "rate 0.5",
    ]
    assert table(recent, 40, 24, "train.py", plain=True) == [
        "2 workers on cpu  40.0 batches/s  40 s",
        "#######---------   44 %  about 51 s left",
        "worker  state     epoch  batches/s",
        "0 cpu   training    5/6       30.0",
        "1 cpu   training    3/6       10.0",
        "loss 0.2 #-.__",
        "val_loss 2.5 +__+# best 0.5 in epoch 2",
        "val_accuracy 0.5 _,-=#  rate 0.5",
    ]


def test_a_long_course_is_kept_in_few_points_and_numbers_of_any_size_are_drawn():
    course = Course()
    for i in range(10_000):
        course.add(float(i))
    course.add(math.nan)
    assert 32 <= len(course.values) < 64
    assert sparkline(course.values, 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0], 8) == "▁▁"
    assert len(sparkline([1e308, -1e308, 1e308], 2)) == 2
    assert len(sparkline([0.0, 5e-324], 2)) == 2
    assert sparkline([], 8) == sparkline([1.0], 0) == ""


def test_the_best_value_is_that_of_its_direction_and_epoch():
    accuracy, loss, unknown = Track("val_acc"), Track("val_loss"), Track("val_x")
    for epoch, value in enumerate([0.5, 0.75, math.nan, 0.25], 1):
        for track in (accuracy, loss, unknown):
            track.take(value, epoch)
    assert (accuracy.best, accuracy.best_epoch) == (0.75, 2)
    assert (loss.best, loss.best_epoch) == (0.25, 4)
    assert math.isnan(unknown.best)


@pytest.mark.parametrize(
    ("environment", "ascii_only"),
    [
        ({"LANG": "C.UTF-8"}, False),
        ({"LANG": "de_DE.utf8@euro"}, False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, True),  # Python's own doing
        ({"LC_CTYPE": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "en_US.ISO-8859-1"}, True),
        ({}, True),
    ],
)
def test_bars_are_ascii_where_the_locale_is_not_utf_8(environment, ascii_only):
    assert shows_ascii_only(terminal(), environment) == ascii_only


@pytest.mark.parametrize(("kernel", "live"), [("", True), ("1234", False)])
def test_a_command_in_a_cell_of_a_notebook_gets_lines(monkeypatch, kernel, live):
    """Its standard output is a terminal there, in which no cursor can be moved."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm-color")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    if kernel:
        monkeypatch.setenv("JPY_PARENT_PID", kernel)
    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        assert is_live(open_console()) == live
    os.close(ours)


def test_what_is_printed_above_the_table_draws_it_anew():
    """Else it stands still for as long as a worker prints."""
    console = terminal(TERM="xterm")
    with Display(console) as display:
        display.show(snapshot([steps(1, 101.0)], {"cost": 0.5}))
        display.show(snapshot([steps(2, 102.0)], {"cost": 0.25}), draw=False)
        assert "cost 0.25" not in console.file.getvalue()
        console.print("a line of the script")
        assert "cost 0.25" in console.file.getvalue().partition("a line of the script")[2]


@pytest.mark.parametrize("live", [True, False])
def test_final_values_are_left_to_the_summary(live):
    console = terminal(TERM="xterm" if live else "dumb")
    with Display(console, summary_follows=True) as display:
        display.show(snapshot([steps(1, 101.0)], {"val_loss": 0.5}))
        last = snapshot([steps(2, 102.0)], {"val_loss": 0.25}, phases=[Phase.LEFT])
        display.show(last._replace(reported_in={"val_loss": 7}))
    text = console.file.getvalue()
    assert "val_loss 0.5" in text
    assert "finished" in text
    assert "0.25  " not in text
    assert ("best 0.25 in epoch 7" in text) == live, "the last value counts too"


def test_workers_that_ctrl_c_ends_are_interrupted_and_one_that_failed_before_is_lost():
    progress = [steps(1, 101.0)] * 3
    seen = snapshot(progress, stop_reason="SIGINT", phases=[Phase.LOST, Phase.LOST, Phase.TRAINING])
    recent = recent_of(seen._replace(failed=[Exit(1, 1)], interrupted=True))
    assert plain_line(recent)[1].startswith("stopping: SIGINT  1 interrupted, worker 1 lost, 1 training")
    assert [line.split()[2] for line in workers_of(recent)[:3]] == ["interrupted", "lost", "training"]


@pytest.mark.parametrize(
    ("reason", "state"), [("SIGINT", "interrupted"), ("platoon stop", "interrupted"), (None, "lost")]
)
def test_a_job_seen_from_outside_tells_who_was_interrupted(reason, state):
    """As `platoon jobs` shows it."""
    seen = snapshot([steps(1, 101.0)], {"loss": 0.5}, stop_reason=reason, phases=[Phase.LOST])
    recent = recent_of(Snapshot.of_message(seen.to_message()))
    assert workers_of(recent)[0].split()[2] == state


def test_a_worker_that_an_exception_ends_has_not_finished():
    """It leaves the job in order while the exception goes up, and its process may take seconds to end."""
    recent = recent_of(snapshot([steps(1, 101.0)] * 2, phases=[Phase.LEFT] * 2)._replace(failing=[1]))
    assert plain_line(recent)[1] == "1 finished, worker 1 lost"


def test_a_pipe_gets_a_short_line_for_each_change_and_the_last():
    out = io.StringIO()
    now = time.monotonic()
    with Display(Console(file=out, width=80)) as display:
        display.show(snapshot([NOT_YET, NOT_YET]))
        display.show(snapshot([COMPILING, COMPILING]))
        trained = steps(100, now, began=now - 10, last_epoch=5)
        display.show(snapshot([trained, trained._replace(loss=0.375)], {"val": 0.5}))
        display.show(snapshot([trained._replace(sync_seconds=1.0), trained], {"val": 0.5}))
        display.show(snapshot([trained, trained], {"val": 0.25}))
    assert out.getvalue().splitlines() == [
        "[  12.5 s] 2 importing",
        "[  12.5 s] 2 compiling",
        "[  12.5 s] 2 training  epoch 1/5  loss 0.25  val 0.5",
        "[  12.5 s] 2 training  epoch 1/5  loss 0.125  val 0.25",
    ]


def test_values_that_change_all_the_time_are_printed_now_and_then():
    out = io.StringIO()
    with Display(Console(file=out, width=80)) as display:
        for i in range(100):
            display.show(snapshot([COMPILING], {"value": i}))
    assert [line.split()[-1] for line in out.getvalue().splitlines()] == ["0", "99"]


def test_the_summary_holds_what_was_reported_and_how_it_ended(tmp_path):
    result = Result(status=3, seconds=1.23456, stopped_by="SIGINT", reported={"test_accuracy": 0.97}, exits=[])
    values = summary(result, workers=4)
    assert values == {
        "test_accuracy": 0.97,
        "workers": 4,
        "joined": 0,
        "seconds": 1.235,
        "stopped_by": "SIGINT",
        "first_failure": "",
        "restarts": 0,
        "shared_nothing": [],
        "status": 3,
    }
    assert write_json(tmp_path / "s.json", values)
    assert json.loads((tmp_path / "s.json").read_text()) == values
    assert write_json(tmp_path / "s.json", {"reported": [math.nan, math.inf, -math.inf, 0.5]})
    text = (tmp_path / "s.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"reported": [None, None, None, 0.5]}


def test_the_script_may_report_what_has_ended_its_training():
    result = Result(status=0, seconds=1.0, stopped_by="end of script", reported={"stopped_by": "patience"}, exits=[])
    assert summary(result, workers=1)["stopped_by"] == "patience"
    assert summary(result._replace(stopped_by="SIGTERM"), workers=1)["stopped_by"] == "SIGTERM"


@pytest.mark.parametrize(
    ("reason", "failed", "ended_well", "stopped_by"),
    [
        (None, None, True, "end of script, after epoch 7 of 50 (patience 3/3)"),
        (None, Exit(1, 137), True, "end of script, after epoch 7 of 50 (patience 3/3)"),
        (None, Exit(1, 137), False, "worker 1: killed by SIGKILL"),
        ("SIGINT", Exit(1, 137), False, "SIGINT"),
        ("enough", None, True, "enough"),
    ],
)
def test_the_first_failure_and_what_has_ended_the_job_are_two_things(reason, failed, ended_well, stopped_by):
    progress = [steps(9, 101.0, epoch=epoch, last_epoch=50, limit="patience 3/3") for epoch in (6, 7)]
    assert stop_cause(reason, failed, ended_well, epochs_reached(progress)) == stopped_by
    result = Result(status=0, seconds=1.0, stopped_by=stopped_by, reported={}, exits=[], failed=failed)
    assert summary(result, 2)["first_failure"] == ("worker 1: killed by SIGKILL" if failed else "")
    assert epochs_reached([steps(9, 101.0, epoch=50, last_epoch=50), steps(9, 101.0)]) == ""


def test_a_worker_that_fails_since_another_is_gone_is_not_the_first_failure():
    """Its process may end before that of the other."""
    lost = Failure(1, "WorkerLostError", "rank 0 is lost", 0.0, follows=True)
    exits = [Exit(2, 0, at=1.0), Exit(1, 1, at=2.0, failure=lost), Exit(0, 1, at=3.0), Exit(3, 1, at=4.0)]
    assert first_failure(exits) == exits[2]
    assert first_failure(exits[:2]) == exits[1]
    assert first_failure(exits[:1]) is None


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("runs/train.py --rate 0.1", "runs/train.py --rate 0.1"),
        ("/srv/projects/vision/train.py --rate 0.1", "/srv/projects/vision/train.py --rate 0.1"),
        ("/srv/projects/vision/train.py --rates 1 10", ".../vision/train.py --rates 1 10"),
        ("/srv/projects/vision/resnet/train.py --rate 0.1", ".../vision/resnet/train.py --rate 0.1"),
        ("/srv/projects/train.py --data 'a b' --rates 0.1 0.125", "train.py --data 'a b' --rates 0.1 0.125"),
        ("/srv/projects/train.py --data /srv/data/imagenet/of_2012", "train.py --data ..."),
        ("runs/one_more_of_the_long_names_of_a.py --data", "one_more_of_the_long_names_of_a.py ..."),
        ("/srv/finetune_the_larger_one_of_the_models.py --a", "finetune_the_larger_one_of_the_models.py"),
        ("-m vision.resnet.train --data /srv/data/imagenet", "vision.resnet.train --data ..."),
        ("- /tmp/copy/stdin.py --data 1", "stdin --data 1"),
        ("a_file_whose_name_has_more_characters_than_the_room.py", "a_file_whose_name_has_more_characters..."),
        ("", "?"),
    ],
)
def test_a_script_is_listed_without_leading_folders_where_it_is_too_long(script, shown, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    job = {"job": "3f2a", "age_s": 7, "workers": 1, "state": "1 training", "devices": ["cpu"], "logs": ""}
    heading, row, _ = listing([{**job, "script": script}])
    assert row[heading.index("script") :] == shown


@pytest.mark.timeout(200)
def test_a_summary_into_a_named_pipe_needs_a_reader(tmp_path):
    pipe = tmp_path / "summary"
    os.mkfifo(pipe)
    assert not write_json(pipe, {"status": 0})
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert write_json(pipe, {"status": 0})
    assert json.loads(os.read(reader, 1000)) == {"status": 0}
    os.close(reader)


@pytest.mark.timeout(200)
def test_a_named_pipe_in_the_place_of_a_log_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rank0.log")
    assert "is a named pipe or a device, not a file" in tail(tmp_path / "rank0.log")
