"""The picture of `platoon tune`, as a browser would read it: curves where their values are, any name, any value."""

import math
import re
from xml.etree import ElementTree

import pytest

from platoon_base.cli.halving import Rung
from platoon_base.cli.study import Drop, Method, Point, Trial, Watched
from platoon_base.cli.tune_picture import picture

pytestmark = pytest.mark.base

SVG = "{http://www.w3.org/2000/svg}"
LOSS = Watched("loss", higher=False)
PLAIN, OTHER = Method(1), Method(2, "EASGD()", 4)


def curve(*values, every=10):
    return [Point(every * i, every * i / 2, value) for i, value in enumerate(values, 1)]


def drawn(trials, watched=LOSS, rungs=(), by="steps", title="script"):
    text = picture(title, trials, watched, list(rungs), by)
    assert "nan" not in text
    assert not re.search(r"[ ,\"]-?inf[ ,\"]", text)
    return ElementTree.fromstring(text)


def of_class(root, tag, name):
    return [each for each in root.iter(f"{SVG}{tag}") if each.get("class") == name]


def pixels(line):
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def test_curves_go_from_left_to_right_and_lower_values_are_lower():
    root = drawn([Trial(PLAIN, 0, {"loss": curve(3, 2, 1)}), Trial(OTHER, 0, {"loss": curve(2, 1, 0)})])
    seconds_plain, seconds_other, *_ = lines = of_class(root, "polyline", "median")
    assert len(lines) == 4
    assert of_class(root, "polyline", "run") == []
    for line in lines:
        points = pixels(line)
        assert len(points) == 3
        assert points == sorted(points)
        assert [y for _, y in points] == sorted(y for _, y in points)
    assert all(ours[1] > theirs[1] for ours, theirs in zip(pixels(seconds_other), pixels(seconds_plain)))
    assert seconds_plain.get("stroke") != seconds_other.get("stroke")


def test_rungs_lie_in_the_panel_of_their_unit_and_a_drop_is_a_cross():
    drop = Drop(Point(10, 5, 2), {PLAIN.name: 1}, 1)
    trials = [Trial(PLAIN, 0, {"loss": curve(3, 2, 1)}), Trial(OTHER, 0, {"loss": curve(2)}, dropped=drop)]
    root = drawn(trials, rungs=[Rung(10, 1), Rung(20, 1)])
    assert len(of_class(root, "path", "rung")) == 2
    crosses = of_class(root, "path", "drop")
    assert len(crosses) == 2
    assert all(f"dropped after {drop.point.steps} steps" in text for text in legend(root)[1:])


def legend(root):
    return [each.text for each in root.iter(f"{SVG}text") if each.text.startswith((PLAIN.name, OTHER.name))]


def test_values_that_are_no_numbers_or_much_worse_than_plain_lie_on_the_border():
    wild = curve(math.nan, 1e30, math.inf)
    root = drawn([Trial(PLAIN, 0, {"loss": curve(3, 2, 1)}), Trial(OTHER, 0, {"loss": wild})])
    plain, other, *_ = of_class(root, "polyline", "median")
    assert {y for _, y in pixels(other)} == {40.0}
    assert max(y for _, y in pixels(plain)) - min(y for _, y in pixels(plain)) > 200


def test_failed_runs_are_left_out_and_texts_may_have_any_characters():
    odd = Method(2, words=("--a=<&>",))
    trials = [Trial(PLAIN, 0, {"<&>": curve(1)}), Trial(odd, 0, {"<&>": curve(1)}), Trial(OTHER, 0, {}, failed="died")]
    root = drawn(trials, Watched("<&>", higher=True), title='a "<script>"')
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert "the script with --a=<&>" in texts
    assert 'a "<script>": <&>, higher is better' in texts
    assert legend(root) == [PLAIN.name]
