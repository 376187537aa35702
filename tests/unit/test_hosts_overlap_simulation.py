"""The simulation of rounds in fragments, overlapped and in pairs: its methods by hand, and its model of the time."""

from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RANDOM = np.random.RandomState(3)


@pytest.fixture
def overlap(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hosts_overlap_simulation

    return hosts_overlap_simulation


@pytest.fixture
def methods(overlap):
    from scripts import simulated_rounds

    return simulated_rounds


def workers(hosts, size=8, seeds=2):
    """Return parameters with which all workers of a seed begin."""
    return RANDOM.standard_normal((seeds, 1, size)).astype(np.float32).repeat(hosts, 1)


def trained(x):
    """Move each worker somewhere else; return where they are."""
    x += RANDOM.standard_normal(x.shape).astype(np.float32)
    return x.copy()


def test_gradients_of_many_models_are_those_of_each(overlap):
    from scripts import hosts_compression_worker, simulated_perceptrons

    flat = RANDOM.standard_normal((2, 3, simulated_perceptrons.COUNT)).astype(np.float32) / 10
    rows, labels = RANDOM.rand(2, 3, 16, 64).astype(np.float32), RANDOM.randint(0, 10, (2, 3, 16))
    out = simulated_perceptrons.views(np.empty_like(flat))
    simulated_perceptrons.gradients(simulated_perceptrons.views(flat), rows, labels, out)
    for seed in range(2):
        for host in range(3):
            params = simulated_perceptrons.views(flat[seed, host])
            wanted = hosts_compression_worker.gradients(params, rows[seed, host], labels[seed, host])
            for found, each in zip(out, wanted):
                np.testing.assert_allclose(found[seed, host], each.reshape(found.shape[2:]), rtol=1e-3, atol=1e-6)


def test_rounds_at_once_are_those_of_diloco(methods):
    x = workers(3)
    c, m = x[:, 0].copy(), 0
    rounds = methods.Rounds(methods.Method("DiLoCo", 2), x, [1, 2])
    for step in (1, 2, 3, 4):
        trained(x)
        if step % 2 == 0:
            d = x.mean(1) - c
            m = 0.8 * m + d
            c = c + 0.7 * (d + 0.8 * m)
        rounds.after(step)
        if step % 2 == 0:
            np.testing.assert_allclose(x, c[:, None].repeat(3, 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rounds.models()[:, 0], c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keep", [0.0, 0.5, None])
def test_what_was_learned_while_a_round_is_under_way_is_kept_as_the_method_says(methods, keep):
    x = workers(2)
    rounds = methods.Rounds(methods.Method("LocalSGD", 4, 2, keep), x, [1, 2])
    for step in range(1, 5):
        sent = trained(x)
        rounds.after(step)
    np.testing.assert_array_equal(x, sent)  # under way
    for step in (5, 6):
        before = trained(x)
        if step == 5:
            rounds.after(step)
            np.testing.assert_array_equal(x, before)
    rounds.after(6)
    c = sent.mean(1)[:, None]
    wanted = c + before - sent if keep is None else keep * before + (1 - keep) * c
    np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rounds.models(), c, rtol=1e-5, atol=1e-5)


def test_fragments_are_exchanged_in_turn_and_all_of_them_at_the_end(methods):
    x = workers(2)
    rounds = methods.Rounds(methods.Method("LocalSGD", 8, 0, 0.0, 4), x, [1, 2])
    for step in range(1, 14):
        before = trained(x)
        rounds.after(step)
        wanted = before.copy()
        if step % 2 == 0:
            part = slice(step // 2 % 4 * 2, step // 2 % 4 * 2 + 2)
            wanted[:, :, part] = before[:, :, part].mean(1, keepdims=True)
        np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-5)
    before = trained(x)
    rounds.finish(14)
    np.testing.assert_allclose(rounds.models(), before.mean(1, keepdims=True), rtol=1e-5, atol=1e-5)


def test_an_overlapped_round_ends_with_all_that_was_learned(methods):
    x = workers(2)
    rounds = methods.Rounds(methods.Method("LocalSGD", 4, 3, None), x, [1, 2])
    for step in range(1, 6):
        before = trained(x)
        rounds.after(step)
    rounds.finish(5)
    np.testing.assert_allclose(rounds.models(), before.mean(1, keepdims=True), rtol=1e-5, atol=1e-5)


def test_pairs_make_the_step_of_noloco(methods):
    x = workers(4, seeds=1)
    groups = methods.Groups(methods.Method("NoLoCo", 1, group=2), x, [1])
    slow, m, random = x[0].copy(), np.zeros_like(x[0]), np.random.default_rng([1, 4])
    for step in (1, 2):
        trained(x)
        for pair in random.permutation(4).reshape(2, 2):
            d, mean = (x[0, pair] - slow[pair]).mean(0), slow[pair].mean(0)
            m[pair] = 0.5 * m[pair] + 0.7 * d + 0.7 * (mean - slow[pair])
            slow[pair] += m[pair]
        groups.after(step)
        np.testing.assert_allclose(x[0], slow, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(groups.models()[0], [slow.mean(0), *slow], rtol=1e-5, atol=1e-5)


def test_pairs_by_the_mean_go_on_from_their_mean(methods):
    x = workers(4)
    before = trained(x)
    methods.Groups(methods.Method("mean", 1, group=2), x, [1, 2]).after(1)  # with slow weights that differ
    pair = np.random.default_rng([2, 4]).permutation(4)[:2]
    np.testing.assert_allclose(x[1, pair], before[1, pair].mean(0)[None].repeat(2, 0), rtol=1e-5, atol=1e-5)


def test_exchanged_centers_move_by_the_difference_to_the_mean_of_their_copies(methods):
    x = workers(2)
    method = methods.Method("AveragedEASGD", 2, 1)
    run, alone = (
        methods.Elastic(each, own, [1, 2]) for each, own in ((method, x), (method._replace(every=9), x.copy()))
    )
    for step in (1, 2, 3):
        moved = RANDOM.standard_normal(x.shape).astype(np.float32)
        for each in (run, alone):
            each.x += moved
            each.after(step)
        if step == 2:
            copies = run.center.copy()
            np.testing.assert_array_equal(copies, alone.center)
    correction = copies.mean(1, keepdims=True) - copies
    for name in ("center", "x", "x_old"):
        np.testing.assert_allclose(getattr(run, name), getattr(alone, name) + correction, rtol=1e-5, atol=1e-5)


def test_the_worth_of_a_loss_is_read_from_the_curve_of_the_reference(overlap):
    curve = np.exp(-np.arange(1, 5)[:, None] * [1.0, 2.0])
    np.testing.assert_allclose(overlap.worth(np.exp([-2.5, -4.0]), curve, 20, 100), [0.5, 0.4])
    np.testing.assert_allclose(overlap.worth(np.array([1e-9, 1e-9]), curve, 20, 100), [0.8, 0.8])


def test_only_what_lasts_longer_than_the_delay_is_waited_for(overlap, methods):
    rate, delay_s = 1e8, 0.01
    at_once = methods.Method("LocalSGD", 200)
    taken = overlap.round_s(2, 1, "none", rate, delay_s)
    assert taken == pytest.approx(8.6, rel=0.05)  # measured in docs/benchmarks/slow-links.md
    assert overlap.round_s(2, 1, "int4", rate, delay_s) == pytest.approx(1.63, rel=0.05)
    assert overlap.share(at_once, 2, "none", rate, delay_s) == pytest.approx(20 / (20 + taken))
    hidden = overlap.share(at_once._replace(delay=100), 2, "none", rate, delay_s)
    assert hidden == pytest.approx(1, abs=1e-3)
    waited = overlap.share(at_once._replace(delay=50), 2, "none", rate, delay_s)
    assert waited == pytest.approx(20 / (20 + taken - 5), abs=1e-3)
    assert overlap.share(methods.Method("AveragedEASGD", 100, 50), 2, "none", rate, delay_s) is None
