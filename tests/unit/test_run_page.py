"""The drawings of the page about a job: any value, any name, any number of workers, as a browser would read them."""

import math
import re
from xml.etree import ElementTree

import pytest

from platoon_base.cli.run_charts import Series, chart, timeline
from platoon_base.cli.run_page import About, page
from platoon_base.cli.run_recorder import Lane, Point, RunRecorder, Shares, Value
from platoon_base.cli.run_report import RunReport, reporting
from platoon_base.coordination.story import Entry

pytestmark = pytest.mark.base

STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def tree(text):
    assert not re.search(r"[ ,\"](nan|-?inf)[ ,\"]", text)
    return ElementTree.fromstring(f"<all>{text}</all>")


def figure(title, series):
    return tree(chart(title, series).figure())


def pixels(root):
    return [
        [tuple(map(float, pair.split(","))) for pair in line.get("points").split()] for line in root.iter("polyline")
    ]


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
def test_any_values_are_drawn_within_the_panel(points):
    if not any(abs(value) <= 1e300 for _, value in points):
        assert chart("values", [Series("<a & b>", points)]) is None
        return
    root = figure("values", [Series("<a & b>", points)])
    assert all(52 <= x <= 410 and 10 <= y <= 190 for line in pixels(root) for x, y in line)
    assert "<a & b>" in [each.text for each in root.iter("title")]


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
    root = tree(timeline(story, [2.5], 100.0, 10.0, [0, 1]))
    scale = (410 - 52) / 10
    lives = sorted(tuple(float(rect.get(name)) for name in ("y", "x", "width")) for rect in root.iter("rect"))
    expected = [(32, 52 + scale, 8 * scale), (50, 52 + scale, 3 * scale), (50, 52 + 6 * scale, 4 * scale)]
    assert sum(lives, ()) == pytest.approx(sum(expected, ()), abs=0.1)
    kinds = [mark.get("class") for mark in root.iter("path") if mark.find("title") is not None]
    assert sorted(kinds) == ["bad", "bad", "good", "good", "good", "good", "note"]
    assert "rank 1: training -> lost (signal 9), 4.0 s" in [each.text for each in root.iter("title")]


def test_a_page_of_many_workers_and_odd_names_is_read_as_it_was_meant():
    recorder = RunRecorder()
    recorder.seconds = 9000.0
    for rank in range(100):
        lane = recorder.lanes[rank] = Lane(rank, "cuda0")
        lane.steps, lane.shares = 50, Shares(1.0 + rank, 0.5, 2.0, 0.0, 0.25)
        lane.points = [Point(60.0 * i, 0, i, math.nan if i % 2 else 1 / (1 + i), Shares()) for i in range(50)]
    recorder.values = {"val_</script>": [Value(1.0, 1.0, 2.0)], "loss": [Value(1.0, 1.0, math.nan)]}
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
    assert len(text) < 400_000


class BrokenReport(RunReport):
    def write(self):
        raise ZeroDivisionError("in the page")


def test_an_error_in_the_report_costs_the_report_and_not_the_job(tmp_path, caplog):
    with reporting(BrokenReport(tmp_path / "run.html", "train.py", tmp_path)):
        pass
    assert "in the page" in caplog.text
    with pytest.raises(KeyError, match="of the job"), reporting(BrokenReport(tmp_path / "x", "train.py", tmp_path)):
        raise KeyError("of the job")
