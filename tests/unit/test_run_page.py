"""The drawings of the page about a job: any value, any name, any number of workers, as a browser would read them."""

import math
import re
from xml.etree import ElementTree

import pytest

from platoon_base.cli.charts import INK, Series, chart, timeline
from platoon_base.cli.observers import Observers
from platoon_base.cli.run_recorder import Lane, Point, RunRecorder, Shares, Value
from platoon_base.cli.trackers.report import About, RunReport, page
from platoon_base.coordination.story import Entry

pytestmark = pytest.mark.base

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
    text = page(recorder, About("train.py --name '<b>' & more", "logs/<x>", None, []))
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


class BrokenReport(RunReport):
    def close(self, result=None):
        raise ZeroDivisionError("in the page")


def test_an_error_in_the_report_costs_the_report_and_not_the_job(tmp_path, caplog):
    broken, other = BrokenReport(tmp_path / "x", "train.py", tmp_path), RunReport(tmp_path / "y", "train.py", tmp_path)
    with pytest.raises(KeyError, match="of the job"), Observers([broken, other]):
        raise KeyError("of the job")
    assert "stopped writing for the report: ZeroDivisionError: in the page" in caplog.text
    assert "train.py" in (tmp_path / "y").read_text()
