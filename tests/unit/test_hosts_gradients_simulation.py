"""The simulation of codecs for averaged gradients: its encodings by hand."""

from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RANDOM = np.random.RandomState(4)


@pytest.fixture
def codecs(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hosts_gradients_simulation

    return hosts_gradients_simulation


def steps_of_two(count, size=20):
    """Return gradients of a matrix and a vector, of two workers in some steps."""
    return [[[RANDOM.randn(size, 3).astype("f"), RANDOM.randn(size).astype("f")] for _ in "01"] for _ in range(count)]


def test_signs_are_two_means_of_each_column(codecs):
    values = np.array([[1, -2], [3, -4], [-5, 0], [-7, 9]], "f")
    found, nbytes = codecs.signs(values)
    assert found.tolist() == [[2, -3], [2, -3], [-6, 4.5], [-6, 4.5]]
    assert nbytes == 1 + 16


def test_beyond_a_threshold_the_threshold_is_sent(codecs):
    found, nbytes = codecs.threshold(0.5)(np.array([0.4, 0.6, -2, -0.5, 0], "f"))
    assert (found.tolist(), nbytes) == ([0, 0.5, -0.5, 0, 0], 8)


@pytest.mark.parametrize("method", ["int8", "int2", "signs", "threshold 0.3", "topk(0.2)"])
def test_what_is_dropped_comes_later(codecs, method):
    """The sum of all averages is that of the exact ones but for what is kept, which stays as small."""
    average, missing = codecs.average_of(method), []
    total = [np.zeros((20, 3)), np.zeros(20)]
    for gradients in steps_of_two(200):
        (found, _), exact = average(gradients), codecs.mean(gradients)
        total = [t + e - f for t, e, f in zip(total, exact, found)]
        missing.append(max(abs(t).max() for t in total))
    assert max(missing) > 1e-3
    assert max(missing[100:]) < 2 * max(missing[:100])


def test_of_momentum_all_is_sent_in_time_and_its_own_step_adds_none(codecs):
    """Gradients of one step only: what deep gradient compression sends is all of their momentum, but what it clears."""
    average = codecs.average_of("momentum topk(0.5)")
    ones = np.array([1, 2, 3, 4], "f")
    first, second = ([[ones * scale] for _ in "01"] for scale in (1, 0))
    assert average(first)[0][0].tolist() == [0, 0, 3, 4]
    found, nbytes = average(second)  # 1 + 0.9 times 1, and nothing of the momentum of what was sent
    np.testing.assert_allclose(found[0], [1.9, 3.8, 0, 0], rtol=1e-6)
    assert nbytes == 16
    model = [np.zeros(4, "f")]
    step = codecs.steps_of("momentum", "momentum topk(0.5)")
    for number in (1, 2):
        step(model, [ones], number)
    np.testing.assert_allclose(model[0], -2 * 0.02 * ones, rtol=1e-6)


@pytest.mark.keras
def test_steps_are_those_of_torch(codecs):
    torch = pytest.importorskip("torch", reason="needs torch: `make test` runs this in .nox/keras3")
    made = {
        "adam": lambda values: torch.optim.Adam(values, lr=codecs.RATES["adam"]),
        "momentum": lambda values: torch.optim.SGD(values, lr=codecs.RATES["momentum"], momentum=0.9),
    }
    for optimizer, make in made.items():
        values = torch.nn.Parameter(torch.zeros(5))
        model, theirs, step = [np.zeros(5, "f")], make([values]), codecs.steps_of(optimizer, "none")
        for number in range(1, 6):
            gradient = RANDOM.randn(5).astype("f")
            values.grad = torch.from_numpy(gradient)
            theirs.step()
            step(model, [gradient], number)
        np.testing.assert_allclose(model[0], values.detach().numpy(), rtol=1e-4, atol=1e-7)
