"""Which methods `platoon tune` drops, by hand: at which moment, against whom, and which it never drops."""

import math

import pytest

from platoon_base.cli.halving import Halving, Rung, drop_text
from platoon_base.cli.study import Method, Point, Trial, Watched, choose, common_end, outcomes

pytestmark = pytest.mark.base

LOSS, ACCURACY = Watched("loss", higher=False), Watched("acc", higher=True)
PLAIN, DEFAULT = Method(1), Method(2, "CenterMomentum()", 10)
FIRST, SECOND, THIRD = (Method(2, rule, 4) for rule in ("EASGD()", "ASGD()", "DiLoCo()"))


def curve(*values, every=10):
    """Return points after every so many steps, of half a second each."""
    return [Point(every * i, every * i / 2, value) for i, value in enumerate(values, 1)]


def halving(*values, budget=30, by="steps"):
    """Return the halving of three methods, of which the first two have run, both with these values."""
    study = Halving([PLAIN, DEFAULT, FIRST, SECOND], DEFAULT, budget, by)
    if values:
        study.add(DEFAULT, curve(*values))
        study.add(FIRST, curve(*values))
    return study


def judged(study, method, points, watched=LOSS):
    """Pass a run point by point as it is made; return its drop, and how many points it needed."""
    judge = study.start(method, watched)
    for count in range(1, len(points) + 1):
        judge.take(watched.name, points[:count])
        if judge.drop is not None:
            return judge.drop, count
    return None, len(points)


@pytest.mark.parametrize(("candidates", "keep"), [(1, (2, 2)), (2, (2, 2)), (3, (2, 2)), (8, (4, 2)), (9, (5, 3))])
def test_half_go_on_after_a_third_and_a_quarter_after_two_thirds_but_at_least_two(candidates, keep):
    methods = [Method(2, "EASGD()", every) for every in range(1, candidates + 1)]
    assert Halving([PLAIN, *methods], DEFAULT, 30, "steps").rungs == [
        Rung(pytest.approx(10), keep[0]),
        Rung(pytest.approx(20), keep[1]),
    ]


def test_a_run_is_dropped_at_the_first_rung_where_enough_others_were_better():
    study = halving()
    study.add(DEFAULT, curve(4, 3, 2))
    assert judged(study, FIRST, curve(5, 4, 3)) == (None, 3)  # the second of two places is left
    study.add(FIRST, curve(5, 2, 1))
    drop, count = judged(study, SECOND, curve(6, 0, 0))
    assert (count, drop.point, drop.keep) == (1, Point(10, 5, 6), 2)
    assert drop.better == {DEFAULT.name: 4, FIRST.name: 5}
    drop, count = judged(study, SECOND, curve(4.5, 3.5, 0))
    assert (count, drop.point) == (2, Point(pytest.approx(20), pytest.approx(10), 3.5))
    assert drop.better == {DEFAULT.name: 3, FIRST.name: 2}
    assert judged(study, SECOND, curve(4.5, 2.5, 9))[0] is None


def test_equal_values_are_not_better_and_neither_is_nan():
    study = halving(4, 4, 4)
    assert judged(study, SECOND, curve(4, 4, 4))[0] is None
    drop, count = judged(study, SECOND, curve(math.nan, 1, 1))
    assert count == 1
    assert math.isnan(drop.point.value)
    assert judged(halving(math.nan, math.nan, math.nan), SECOND, curve(4, 4, 4))[0] is None


def test_plain_training_and_the_default_are_never_dropped_and_plain_competes_with_none():
    study = halving()
    study.add(PLAIN, curve(0, 0, 0))
    study.add(FIRST, curve(1, 1, 1))
    assert judged(study, SECOND, curve(2, 2, 2))[0] is None
    study.add(SECOND, curve(2, 2, 2))
    assert judged(study, DEFAULT, curve(9, 9, 9))[0] is None
    assert judged(study, PLAIN, curve(9, 9, 9))[0] is None
    study.add(DEFAULT, curve(9, 9, 9))
    assert study.after_first_seed(30, LOSS) == {}


def test_a_run_without_a_value_at_that_moment_does_not_count():
    study = halving()
    study.add(DEFAULT, [Point(25, 12, 1)])
    study.add(FIRST, curve(1, 1, 1))
    assert judged(study, SECOND, curve(6, 5, 4))[0] is None


def test_after_the_first_seed_the_best_two_and_the_default_go_on():
    study = halving()
    for method, last in ((DEFAULT, 4), (FIRST, 1), (SECOND, 2), (THIRD, 3)):
        study.add(method, curve(last, last, last))
    drops = study.after_first_seed(30, LOSS)
    assert {method: drop.better for method, drop in drops.items()} == {THIRD: {FIRST.name: 1, SECOND.name: 2}}


def test_a_method_that_was_dropped_is_shown_as_it_was_and_is_not_taken():
    points = curve(5, 0.5)
    drop, _ = judged(halving(4, 3, 2), SECOND, points)
    trials = [
        Trial(PLAIN, 0, {"loss": curve(6, 5, 4)}),
        Trial(DEFAULT, 0, {"loss": curve(4, 3, 2)}),
        Trial(SECOND, 0, {"loss": points}, dropped=drop),
    ]
    assert common_end(trials, LOSS, 30, "steps") == 30
    found = outcomes(trials, LOSS, 30, "steps")
    assert (found[2].values, found[2].steps, found[2].dropped) == ([5], 10, drop)
    assert choose(found, DEFAULT, LOSS)[0].method == DEFAULT
    text = drop_text(drop, LOSS)
    assert text.startswith("dropped after 10 steps, 5.0 s, with loss 5. ")
    assert text.endswith("CenterMomentum() every 10 (4), EASGD() every 4 (4)")
