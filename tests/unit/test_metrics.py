"""Global means: exact sums, whatever the order, and IEEE's answer where there is no exact one."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon_base.errors import ConfigurationError
from platoon_base.metrics import MeanAccumulator, add_pairs, means

pytestmark = pytest.mark.base

EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True)
numbers = st.floats(-1e300, 1e300)
inf, nan = math.inf, math.nan


@EXAMPLES
@given(values=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=50))
def test_sums_are_exactly_rounded(values):
    (total, weight) = add_pairs({"m": pair} for pair in values)["m"]
    assert total == float(sum(Fraction(v) for v, _ in values))
    assert weight == float(sum(Fraction(w) for _, w in values))


@EXAMPLES
@given(values=st.lists(numbers, min_size=1, max_size=20), random=st.randoms(use_true_random=False))
def test_the_order_of_the_workers_does_not_matter(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    assert add_pairs({"m": (v, 1.0)} for v in values) == add_pairs({"m": (v, 1.0)} for v in shuffled)


@EXAMPLES
@given(batches=st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 1000)), min_size=1, max_size=30))
def test_means_are_weighted_averages(batches):
    accumulator = MeanAccumulator()
    for value, count in batches:
        accumulator.add({"loss": value}, weight=count)
    values, counts = zip(*batches)
    got = means(accumulator.pairs)["loss"]
    if sum(counts):
        scale = max(abs(value) for value in values)
        assert math.isclose(got, np.average(values, weights=counts), rel_tol=1e-12, abs_tol=1e-12 * scale)
    else:
        assert math.isnan(got)


@EXAMPLES
@given(batches=st.lists(st.tuples(st.integers(-(2**40), 2**40), st.integers(1, 2**10)), min_size=2, max_size=40))
def test_adding_over_batches_and_workers_is_adding_at_once(batches):
    workers = [MeanAccumulator() for _ in range(3)]
    for i, (value, count) in enumerate(batches):
        workers[i % 3].add({"m": value / 4}, weight=count)
    expected = sum(Fraction(v, 4) * w for v, w in batches)
    assert add_pairs(worker.pairs for worker in workers).get("m") == (float(expected), sum(w for _, w in batches))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([inf, 1.0], inf),
        ([1.0, -inf], -inf),
        ([inf, -inf], nan),
        ([nan, 1.0], nan),
        ([nan, inf], nan),
        ([1e308, 1e308], inf),
        ([-1e308, -1e308], -inf),
    ],
)
def test_what_has_no_finite_sum_has_that_of_ieee(values, expected):
    total, weight = add_pairs({"m": (value, 1.0)} for value in values)["m"]
    np.testing.assert_equal(total, expected)
    assert weight == len(values)


@pytest.mark.parametrize("values", [[1e308, 1e308, -1e308], [-1e308, -1e308, inf]], ids=str)
def test_the_order_does_not_matter_at_the_edge_of_the_floats(values):
    forward = add_pairs({"m": (value, 1.0)} for value in values)
    back = add_pairs({"m": (value, 1.0)} for value in reversed(values))
    rotated = add_pairs({"m": (value, 1.0)} for value in (*values[1:], values[0]))
    np.testing.assert_equal(forward, back)
    np.testing.assert_equal(forward, rotated)


def test_bleu_of_a_divided_corpus_is_sacrebleus():
    """Counts of each worker's sentences are added as pairs; sacrebleu 2.6.0 has read all sentences at once."""
    texts = [
        ("the cat sat on the mat", "the cat is on the mat"),
        ("a quick brown fox jumps over the dog", "the quick brown fox jumps over the lazy dog"),
        ("there is a tree in the small garden", "there is a tree in the garden"),
        ("we train one model with several workers", "several workers train one model together"),
    ]
    workers = []
    for part in (texts[:1], texts[1:3], texts[3:]):
        counts = MeanAccumulator()
        for said, right in ((a.split(), b.split()) for a, b in part):
            for n in range(1, 5):
                grams, known = ([tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in (said, right))
                found = sum(min(grams.count(gram), known.count(gram)) for gram in set(grams))
                counts.add({f"precision {n}": found / len(grams)}, weight=len(grams))
            counts.add({"length": len(right) / len(said)}, weight=len(said))
        workers.append(counts.pairs)
    found = means(add_pairs(workers))
    precision = math.exp(sum(math.log(found[f"precision {n}"]) for n in range(1, 5)) / 4)
    assert 100 * precision * min(1, math.exp(1 - found["length"])) == pytest.approx(54.62218426942139, rel=1e-12)


def test_f1_of_divided_rows_is_scikit_learns():
    scores = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(5)
    y, chosen = rng.integers(0, 2, (2, 101))
    pairs = []
    for rows in np.split(np.arange(101), [7, 60]):
        hits = float(np.sum(y[rows] * chosen[rows]))
        pairs.append({"precision": (hits, chosen[rows].sum()), "recall": (hits, y[rows].sum())})
    found = means(add_pairs(pairs))
    assert (found["precision"], found["recall"]) == (
        pytest.approx(scores.precision_score(y, chosen), rel=1e-15),
        pytest.approx(scores.recall_score(y, chosen), rel=1e-15),
    )
    f1 = 2 / (1 / found["precision"] + 1 / found["recall"])
    assert f1 == pytest.approx(scores.f1_score(y, chosen), rel=1e-12)


def test_no_weight_means_nothing_was_measured():
    assert math.isnan(means({"m": (0.0, 0.0)})["m"])
    accumulator = MeanAccumulator()
    accumulator.add({"m": 3.0}, weight=0)
    assert math.isnan(means(accumulator.pairs)["m"])


@pytest.mark.parametrize("weight", [-1, -0.5, nan, inf])
def test_a_weight_that_counts_nothing_is_refused(weight):
    accumulator = MeanAccumulator()
    with pytest.raises(ConfigurationError, match="finite and >= 0"):
        accumulator.add({"m": 1.0}, weight=weight)
    assert accumulator.pairs == {}
