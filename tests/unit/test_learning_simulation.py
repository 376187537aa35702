"""The simulation of docs/learning.md: its methods against the rules of the library and by hand."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from platoon_base.rules import EASGD, CenterMomentum

pytestmark = [
    pytest.mark.keras,
    pytest.mark.skipif(
        os.environ.get("KERAS_BACKEND") != "torch", reason="needs torch: `make test` runs this in .nox/keras3"
    ),
]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RANDOM = np.random.RandomState(3)


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import learning_simulation

    return learning_simulation


@pytest.fixture
def methods(simulation):
    from scripts import simulated_methods

    return simulated_methods


@pytest.fixture
def data(simulation):
    """Return 1,024 rows, each the picture of its class with noise, and 256 to validate on."""
    random = np.random.RandomState(4)
    y = random.randint(0, 10, 1280)
    x = random.rand(10, 784)[y] + 0.3 * random.rand(1280, 784)
    x, y = simulation.torch.as_tensor(x.astype("float32")), simulation.torch.as_tensor(y)
    return x[:1024], y[:1024], x[1024:], y[1024:]


def perceptron(simulation):
    return simulation.NETWORKS["fashion-mnist"]()


def tensors(simulation, **arrays):
    return SimpleNamespace(**{name: simulation.torch.as_tensor(array.copy()) for name, array in arrays.items()})


def trained(simulation, data, row, seeds=(1,), steps=12):
    """Return the models after some steps, all on the same rows for the same worker."""
    x, y = data[0][: 128 * row.workers], data[1][: 128 * row.workers]
    models = simulation.Models([row], list(seeds), 0.01, "cpu", perceptron(simulation))
    shape = len(seeds), row.workers, 128
    for _ in range(steps):
        models.step(x.expand(len(seeds), -1, -1).reshape(*shape, -1), y.expand(len(seeds), -1).reshape(shape))
    return models


@pytest.mark.parametrize("arrivals", [1, 5])
def test_center_momentum_and_easgd_are_those_of_the_library(simulation, methods, arrivals):
    x, c, m, s, s_x = RANDOM.randn(5, 1, 7)
    rule, plain = CenterMomentum().resolved(4), EASGD(0.3)
    at = tensors(simulation, x=x, c=c, m=m, s=s, s_x=s_x)
    spring = tensors(simulation, x=x, c=c)
    local, center = x.copy(), c.copy()
    for _ in range(arrivals):
        methods.center_momentum(at, SimpleNamespace(alpha=rule.alpha, mu=0.9, gain=rule.gain, workers=4))
        methods.easgd(spring, SimpleNamespace(alpha=0.3))
        rule.sync(x, c, (s_x,), (m, s))
        plain.sync(local, center, (), ())
    for name, expected in {"x": x, "c": c, "m": m, "s": s, "s_x": s_x}.items():
        np.testing.assert_allclose(getattr(at, name), expected, rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(spring.x, local, rtol=1e-12)
    np.testing.assert_allclose(spring.c, center, rtol=1e-12)


def test_averaged_gradients_on_the_same_rows_are_plain_training(simulation, data):
    """With N workers on one worker's rows; and Adam is torch's."""
    torch = simulation.torch
    plain = trained(simulation, data, simulation.Setting("plain", 1, {}))
    both = simulation.Models(
        [simulation.Setting("averaged gradients", 2, {})], [1], 0.01, "cpu", perceptron(simulation)
    )
    flat = perceptron(simulation).initial(1)[None].requires_grad_()
    adam = torch.optim.Adam([flat], lr=0.01, eps=1e-7)
    x, y = data[0][:128], data[1][:128]
    for _ in range(12):
        both.step(x.expand(1, 2, -1, -1), y.expand(1, 2, -1))
        adam.zero_grad()
        torch.nn.functional.cross_entropy(perceptron(simulation).logits(flat, x[None])[0], y).backward()
        adam.step()
    # Where a gradient is nearly 0, Adam makes much of its last bits; a step is up to 0.01.
    np.testing.assert_allclose(plain.c, flat.detach(), rtol=0, atol=1e-3)
    np.testing.assert_allclose(both.c, flat.detach(), rtol=0, atol=1e-3)


def test_every_row_of_the_table_runs_and_learns_something(simulation, methods, data):
    rows = methods.settings(2)
    assert {row.method for row in rows} == {*methods.METHODS} - {"plain", "AveragedEASGD"}
    assert len({(row.method, row.label) for row in rows}) == len(rows)
    for group in simulation.grouped(rows):
        for row, ((curve,), _) in zip(group, simulation.simulate(perceptron(simulation), group, [1], 0.002, 6, data)):
            assert curve[-1][0] == 24, row
            assert max(accuracy for *_, accuracy in curve) > 0.2, row
