"""The course of a job from its snapshots, and the straggler in it: numbers by hand."""

import json
import logging
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from platoon_base.cli.charts import INK, Series, chart, timeline
from platoon_base.cli.observers import Observed, Observers
from platoon_base.cli.recent import is_validation
from platoon_base.cli.run_recorder import Lane, Point, RunRecorder, Shares, StragglerWatch, Value, rates
from platoon_base.cli.trackers.report import RunReport, page, straggler_of, verdict
from platoon_base.cli.trackers.trace import TraceFile
from platoon_base.controller.outcome import Snapshot
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.coordination.story import Entry, Story
from platoon_base.shm.job_state import Progress
from platoon_base.shm.phases import BINS, COMPUTE, LOADING, PARTS, PHASES, PhaseTimes, bins_of

pytestmark = pytest.mark.base


def phase_times(steps=0, **per_step):
    """Return the times of a worker whose steps were all alike, but for seconds of each phase."""
    seconds = {name: per_step.get(name, 0.0) for name in PHASES}
    counts = np.zeros((len(PARTS), BINS), np.uint32)
    for row, part in enumerate(PARTS):
        counts[row, bins_of(seconds[part] + (seconds["collective"] if part == "sync" else 0.0))] = steps
    return PhaseTimes(tuple(steps * each for each in seconds.values()), counts)


def worker(steps, started=10.0, loss=math.nan, before=0, **per_step):
    progress = Progress(0, steps + before, 0, loss, 0.0, started, started, steps_before_start=before)
    return progress, phase_times(steps, **per_step)


def snapshot(*workers, gone=(), reported=None, saved=0):
    participants = [
        Participant(rank, True, Phase.LOST if rank in gone else Phase.TRAINING, device="cpu")
        for rank in range(len(workers))
    ]
    return Snapshot(
        participants,
        {rank: each[0] for rank, each in enumerate(workers)},
        reported or {},
        None,
        1.0,
        saved_checkpoints=saved,
        phases={rank: each[1] for rank, each in enumerate(workers)},
    )


def recorded(*snapshots):
    recorder = RunRecorder()
    for second, each in enumerate(snapshots):
        recorder.take(each, recorder.start + second)
    recorder.end()
    return recorder


def test_waits_in_collective_calls_are_those_beyond_the_shortest():
    """Worker 1 comes last to each call: its 10 ms are the exchange, and the other's 100 ms beyond them are waits."""
    first = worker(1, compute=0.0)
    early, late = dict(compute=0.05, collective=0.11), dict(compute=0.15, collective=0.01)
    lanes = recorded(
        snapshot(first, first),
        snapshot(worker(40, **early), worker(40, **late)),
        snapshot(worker(80, **early), worker(80, **late)),
    ).lanes
    assert lanes[0].shares == pytest.approx(Shares(4.0, 0.8, 8.0, 0.0, 0.0))
    assert lanes[1].shares == pytest.approx(Shares(12.0, 0.8, 0.0, 0.0, 0.0))


def test_a_rank_that_is_started_again_adds_to_its_time_and_steps():
    lanes = recorded(
        snapshot(worker(10, compute=1.0)),
        snapshot(worker(0, started=0.0, before=10)),
        snapshot(worker(5, started=30.0, before=10, compute=1.0, loading=1.0)),
    ).lanes
    assert lanes[0].shares == Shares(compute=15.0, loading=5.0)
    assert lanes[0].steps == 15
    assert lanes[0].counts.sum(axis=1).tolist() == [15] * len(PARTS)


def test_a_start_that_moves_with_another_hosts_clock_is_no_new_process():
    """The launcher corrects times of other hosts by the shortest way of a message so far."""
    lanes = recorded(
        snapshot(worker(10, started=10.0, compute=1.0)),
        snapshot(worker(20, started=9.998, compute=1.0)),
        snapshot(worker(30, started=9.997, compute=1.0)),
    ).lanes
    assert lanes[0].shares == Shares(compute=30.0)
    assert lanes[0].steps == 30


def test_points_values_and_checkpoints_stay_few():
    recorder = RunRecorder()
    for second in range(6000):
        made = worker(second + 1, loss=1 / (second + 1), compute=1.0)
        recorder.take(
            snapshot(made, reported={"val_loss": second, "who": "text"}, saved=second), recorder.start + second
        )
    recorder.end()
    points, values = recorder.lanes[0].points, recorder.values["val_loss"]
    assert len(points) <= 1300
    assert [points[0].at, points[-1].at] == pytest.approx([0.0, 5999.0])
    assert points[-1].shares.compute == 6000.0
    assert len(values) <= 1300
    assert values[-1].value == 5999
    assert len(recorder.checkpoints) <= 1300
    assert list(recorder.values) == ["val_loss"]
    assert all(rate == pytest.approx(1.0) for _, rate in rates(recorder.lanes[0]))


def slow_by(rank, phase, seconds, count=3):
    """Return the steps of workers of 10 ms, of which one has another time in a phase."""
    usual = {"compute": 0.01}
    return [{**usual, phase: seconds} if each == rank else usual for each in range(count)]


def watched(per_step, steps_a_second, seconds=12):
    """Let a watch see workers second by second; return what it finds, with the second."""
    watch, found = StragglerWatch(), []
    for second in range(1, seconds):
        workers = [worker(count * second, **each) for each, count in zip(per_step, steps_a_second)]
        straggler = watch.take(snapshot(*workers), float(second))
        if straggler is not None:
            found.append((second, straggler))
    return found


@pytest.mark.parametrize(("name", "phase"), [("compute", COMPUTE), ("loading", LOADING)])
def test_a_straggler_is_named_once_with_its_phase(name, phase):
    [(second, found)] = watched(slow_by(1, name, 0.2), [5, 5, 5])
    assert second <= 8
    assert (found.rank, found.phase) == (1, phase)
    assert found.seconds == pytest.approx(0.2, rel=0.1)
    assert "worker 1 is slower than the others in " in found.line
    assert ("loading: 200 ms" in found.line) == (phase == LOADING)


@pytest.mark.parametrize(
    ("per_step", "steps"),
    [
        (slow_by(1, "compute", 0.018), [40, 40, 40]),  # not twice as slow
        (slow_by(1, "waiting", 0.5), [2, 2, 2]),  # it waits for others
        (slow_by(1, "collective", 0.5), [2, 2, 2]),
        (slow_by(1, "validation", 0.5), [2, 2, 2]),
        (slow_by(0, "compute", 0.5, count=1), [2]),  # nothing to compare with
        ([{"compute": 0.0001}, {"compute": 0.0009}], [90, 90]),  # too short to matter
    ],
)
def test_what_is_no_straggler(per_step, steps):
    assert watched(per_step, steps) == []


def test_one_long_step_makes_no_straggler():
    """Such as one in which a worker saves."""
    watch, found, extra = StragglerWatch(), [], 0.0
    for second in range(1, 14):
        extra += 1.5 if second % 2 else 0.0
        workers = [worker(50 * second, compute=0.01) for _ in range(2)]
        times = workers[1][1]
        times.counts[0, bins_of(1.5)] += (second + 1) // 2
        times = times._replace(seconds=(times.seconds[0] + extra, *times.seconds[1:]))
        found.append(watch.take(snapshot(workers[0], (workers[1][0], times)), float(second)))
    assert found == [None] * 13


def test_the_verdict_names_the_share_and_the_straggler():
    first = worker(1)
    lanes = recorded(
        snapshot(first, first),
        snapshot(worker(100, compute=0.02, waiting=0.18), worker(100, compute=0.076, loading=0.124)),
    ).lanes
    texts = [each.text for each in verdict(lanes, None, [])]
    assert any(text.startswith("62 % of rank 1's time is waiting for batches") for text in texts)
    assert any(text.startswith("90 % of rank 0's time is waiting for other workers") for text in texts)
    assert any(text.startswith("Worker 1 is slower than the others in loading: 124 ms per step") for text in texts)
    assert straggler_of(lanes).waiting == pytest.approx(0.9)


# The page.


STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def tree(text):
    assert not re.search(r"[ ,\"](nan|-?inf)[ ,\"]", text)
    return ElementTree.fromstring(f"<all>{text}</all>")


def named(root, name):
    """Return the tags of the parts of a group."""
    return [part.tag.rpartition("}")[2] for group in root.iter() if group.get("id") == name for part in group.iter()]


def texts(root):
    return [each.text for each in root.iter() if each.tag.endswith("text")]


def entry(at, rank, before, after, why=""):
    return Entry(at, "rank", [rank], before, after, why)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, math.nan)],
        [(0, 5.0)],
        [(0, 0.0), (1, 0.0)],
        [(0, math.inf), (1, -math.inf), (2, 1.0)],
        [(0, 1e300), (1, -1e300)],
        [(0, 1e308), (1, 1.0), (2, -1e308)],
        [(0, 1.7e308)],
        [(i, 1e9 if i < 2 else 1.0 + i % 2) for i in range(100)],
        [(3600.0 * i, 1e-12 * i) for i in range(5000)],
    ],
)
def test_any_values_are_drawn(points):
    if not any(abs(value) <= 1e100 for _, value in points):
        assert chart([Series("<a & b>", points)]) is None
        return
    root = ElementTree.fromstring(chart([Series("<a & b>$_", points), Series("_", points)]))
    assert {"<a & b>$_", "_"} <= set(texts(root))
    assert len(ElementTree.tostring(root)) < 50_000


@pytest.mark.parametrize(("last", "unit"), [(60.0, "seconds"), (1200.0, "minutes"), (9000.0, "hours")])
def test_the_first_losses_do_not_flatten_the_curve_and_the_time_has_a_unit(last, unit):
    points = [(last * i / 99, 1e9 if i < 2 else 1.0 + i % 2) for i in range(100)]
    shown = texts(ElementTree.fromstring(chart([Series("loss", points)])))
    assert unit in shown
    assert "1e9" not in shown


def test_lives_begin_and_end_where_the_story_says():
    story = [
        Entry(100.0, "job", [], "", "starts"),
        Entry(101.0, "rank", [0, 1], "expected", "joined"),
        entry(104.0, 1, "training", "lost", "signal 9"),
        entry(105.0, 1, "lost", "expected late"),
        entry(106.0, 1, "expected late", "joined late"),
        Entry(107.0, "host", [1], "", "lost"),
        entry(109.0, 0, "training", "left"),
    ]
    root = ElementTree.fromstring(timeline(story, [2.5], 100.0, 10.0, [0, 1]))
    counts = {kind: named(root, f"marks-{kind}").count("use") for kind in ("good", "note", "bad")}
    assert counts == {"good": 4, "note": 1, "bad": 2}
    (lives,) = (group for group in root.iter() if group.get("id") == "lives")
    lines = [re.findall(r"[ML] ([\d.]+) ([\d.]+)", path.get("d")) for path in lives.iter() if path.get("d")]
    found = sorted((float(y), float(x), float(end) - float(x)) for (x, y), (end, _) in lines)
    ((_, start, longest), (_, first, lost), (_, again, rest)) = found
    second = longest / 8  # of worker 0, which is shown above worker 1
    assert [start - first, lost, again - first, rest] == pytest.approx([0, 3 * second, 5 * second, 4 * second], abs=0.1)


def test_a_page_of_many_workers_and_odd_names_is_read_as_it_was_meant():
    recorder = RunRecorder()
    recorder.seconds = 9000.0
    for rank in range(100):
        lane = recorder.lanes[rank] = Lane(rank, "cuda0")
        lane.steps, lane.shares = 50, Shares(1.0 + rank, 0.5, 2.0, 0.0, 0.25)
        lane.points = [Point(60.0 * i, 0, i, math.nan if i % 2 else 1 / (1 + i), Shares()) for i in range(50)]
    recorder.values = {"val_</script>": [Value(1.0, 1.0, 2.0)], "loss": [Value(1.0, 1.0, math.nan)]}
    pytest.importorskip("matplotlib", reason="needs matplotlib: `make setup` installs it")
    text = page(recorder, observed("logs/<x>", "train.py --name '<b>' & more"), None)
    body = STYLE.sub("", text).replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', "")
    root = tree(re.sub(r"<meta[^>]*>", "", body))
    assert root.find(".//h1").text == "train.py --name '<b>' & more"
    assert "and 36 more workers" in [each.text for each in root.iter("p")]
    bars = [each for each in root.iter("div") if each.get("class") == "bar"]
    assert len(bars) == 64
    widths = [float(re.search(r"width: ([\d.]+)%", piece.get("style"))[1]) for piece in bars[0]]
    assert widths == pytest.approx([100 / 3.75, 50 / 3.75, 200 / 3.75, 0.0, 25 / 3.75], abs=0.001)
    assert "val_</script>" in [each.text for each in root.iter("figcaption")]
    assert len(text) < 500_000
    charts = "".join(re.findall("<svg.*?</svg>", text, re.DOTALL))
    assert "currentColor" in charts
    assert INK not in charts


def observed(folder, command="train.py"):
    return Observed("train.py", command, folder, Story())


class BrokenReport(RunReport):
    def close(self, result=None):
        raise ZeroDivisionError("in the page")


def test_an_error_in_the_report_costs_the_report_and_not_the_job(tmp_path, caplog):
    job = observed(tmp_path)
    broken, other = BrokenReport(tmp_path / "x", job), RunReport(tmp_path / "y", job)
    with pytest.raises(KeyError, match="of the job"), Observers([broken, other]):
        raise KeyError("of the job")
    assert "stopped writing for the report: ZeroDivisionError: in the page" in caplog.text
    assert "train.py" in (tmp_path / "y").read_text()


# Names of values.


@pytest.mark.parametrize(
    "name",
    [
        "val_loss",
        "validation loss",
        "valid_cost",
        "valLoss",
        "VAL/acc",
        "test_error_rate",
        "test1",
        "dev.bleu",
        "eval_f1",
    ],
)
def test_of_validation(name):
    assert is_validation(name)


@pytest.mark.parametrize("name", ["value", "latest_rate", "device_ms", "interval", "deviation", "loss", ""])
def test_other_words_that_contain_the_letters(name):
    assert not is_validation(name)


# The trace.


@pytest.mark.parametrize(("phase", "made"), [(COMPUTE, True), (99, False)], ids=["a phase", "an unknown phase"])
def test_an_error_costs_the_trace_and_not_the_job(tmp_path, caplog, phase, made):
    """A worker of another release may know phases that the launcher does not."""
    path = tmp_path / "trace.json"
    with caplog.at_level(logging.WARNING), Observers([TraceFile(path, observed(tmp_path))]):
        (tmp_path / "trace").mkdir()
        part = {"rank": 0, "spans": [[phase, 1.0, 2.0]]}
        (tmp_path / "trace" / "rank0.json").write_text(json.dumps(part))
    assert path.exists() == made
    assert ("stopped writing for the trace" in caplog.text) != made
    assert not (tmp_path / "trace").exists()
