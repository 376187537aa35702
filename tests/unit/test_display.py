"""What a person sees: live lines on a terminal, plain lines in a pipe, the summary."""

import io
import json
import math

import pytest
from rich.console import Console

from platoon_base.cli.display import Display, summary, write_summary
from platoon_base.controller.controller import Result, Snapshot
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.shm.job_state import Progress

pytestmark = pytest.mark.base


def snapshot(stop_reason=None, loss=0.125):
    participants = [
        Participant(0, True, phase=Phase.TRAINING, device="cpu"),
        Participant(1, True, phase=Phase.JOINED, device="cuda1"),
    ]
    progress = {
        0: Progress(epoch=3, steps=200, syncs=20, loss=loss, sync_seconds=0.5, started=100.0, updated=110.0),
        1: Progress(epoch=0, steps=0, syncs=0, loss=math.nan, sync_seconds=0.0, started=0.0, updated=0.0),
    }
    return Snapshot(participants, progress, {"valid_error": 0.0625, "note": "hi"}, stop_reason, 12.5)


def test_a_terminal_gets_a_line_for_each_worker_and_a_total():
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=120)) as display:
        display.show(snapshot())
    text = out.getvalue()
    for expected in (
        "0 cpu",
        "training",
        "20.0",
        "0.125",
        "5.0%",
        "1 cuda1",
        "joined",
        "valid_error 0.0625",
        "note hi",
    ):
        assert expected in text, f"{expected!r} is not in {text!r}"


def test_a_pipe_gets_plain_lines_now_and_then_and_the_last():
    out = io.StringIO()
    with Display(Console(file=out, width=80)) as display:
        display.show(snapshot())
        display.show(snapshot(loss=99.0))
        display.show(snapshot(loss=0.5))
    line, last = out.getvalue().splitlines()
    assert last == line.replace("loss 0.125", "loss 0.5")
    assert "\x1b" not in line
    assert line.startswith(
        "[  12.5 s] worker 0: training epoch 3 20.0 batches/s loss 0.125 sync 5.0% | worker 1: joined"
    )
    assert line.endswith("total: valid_error 0.0625  note hi")


def test_the_reason_of_a_stop_is_shown():
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=120)) as display:
        display.show(snapshot("no improvement"))
    assert "stopping: no improvement" in out.getvalue()


def test_the_summary_holds_what_was_reported_and_how_it_ended(tmp_path):
    result = Result(status=3, seconds=1.23456, stopped_by="SIGINT", reported={"test_accuracy": 0.97}, exits=[])
    values = summary(result, workers=4)
    assert values == {
        "test_accuracy": 0.97,
        "workers": 4,
        "seconds": 1.235,
        "stopped_by": "SIGINT",
        "restarts": 0,
        "shared_nothing": [],
        "status": 3,
    }
    write_summary(tmp_path / "s.json", values)
    assert json.loads((tmp_path / "s.json").read_text()) == values
