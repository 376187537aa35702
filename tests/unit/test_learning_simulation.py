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


def test_diloco_with_rate_1_and_no_momentum_is_the_mean(simulation, methods):
    x = RANDOM.randn(2, 3, 5)
    at = tensors(simulation, x=x, c=RANDOM.randn(2, 5), m=RANDOM.randn(2, 5))
    methods.diloco(at, SimpleNamespace(lr=1, mu=0))
    np.testing.assert_allclose(at.c, x.mean(1), rtol=1e-12)
    np.testing.assert_allclose(at.x, np.repeat(x.mean(1, keepdims=True), 3, axis=1), rtol=1e-12)


def test_the_third_of_three_closes_a_round(simulation, methods):
    """Workers went 1, 2 and 6: the round's mean is 3, and a momentum of 0.5 at rate 1 makes 4.5 of it."""
    p, zero = SimpleNamespace(lr=1, mu=0.5, workers=3), np.zeros((1, 1))
    at = tensors(simulation, c=zero, m=zero, total=zero, count=zero)
    seen = []
    for went in (1.0, 2.0, 6.0):
        at.x, at.x_old = at.c * 0 + went, at.c * 0
        methods.rounds(at, p)
        seen.append((at.x.item(), at.c.item(), at.count.item()))
    assert seen == [(1, 0, 1), (1.5, 0, 2), (4.5, 4.5, 0)]


def test_center_momentum_with_gain_0_is_easgd(simulation, data):
    alpha = {"alpha": 0.3}
    easgd = trained(simulation, data, simulation.Setting("EASGD", 2, alpha, period=3))
    row = simulation.Setting("CenterMomentum", 2, {**alpha, "mu": 0.9, "gain": 0.0}, period=3)
    still = trained(simulation, data, row)
    assert simulation.torch.equal(still.c, easgd.c)
    assert simulation.torch.equal(still.x, easgd.x)
    moving = trained(simulation, data, row._replace(values={**row.values, "gain": 1.0}))
    assert not simulation.torch.equal(moving.c, easgd.c)


def test_averaged_easgd_with_equal_pulls_and_plain_steps_is_easgd(simulation, data):
    easgd = trained(simulation, data, simulation.Setting("EASGD", 2, {"alpha": 0.3}, period=3))
    row = simulation.Setting("AveragedEASGD", 2, {"alpha": 0.3, "pull": 0.3, "factor": 1.0}, period=3)
    same = trained(simulation, data, row)
    np.testing.assert_allclose(same.c, easgd.c, rtol=0, atol=1e-6)
    np.testing.assert_allclose(same.x, easgd.x, rtol=0, atol=1e-6)
    longer = trained(simulation, data, row._replace(values={**row.values, "factor": 2.0}))
    assert not simulation.torch.equal(longer.c, easgd.c)


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


def test_arrivals_are_staggered_and_a_slow_worker_comes_half_as_often(simulation, data, monkeypatch):
    seen = []
    noted = simulation.METHODS["EASGD"]._replace(arrive=lambda at, p: seen.append(models.ticks))
    monkeypatch.setitem(simulation.METHODS, "EASGD", noted)
    row = simulation.Setting("EASGD", 2, {"alpha": 0.3}, period=4)
    for slow, expected in ((1, [2, 4, 6, 8]), (2, [2, 6, 7])):
        seen.clear()
        models = simulation.Models([row._replace(slow=slow)], [1], 0.01, "cpu", perceptron(simulation))
        for _ in range(8):
            models.step(data[0][:256].reshape(1, 2, 128, -1), data[1][:256].reshape(1, 2, 128))
        assert seen == expected


def test_every_row_of_the_table_runs_and_learns_something(simulation, methods, data):
    rows = methods.settings(2)
    assert {row.method for row in rows} == {*methods.METHODS} - {"plain", "AveragedEASGD"}
    assert len({(row.method, row.label) for row in rows}) == len(rows)
    for group in simulation.grouped(rows):
        for row, ((curve,), _) in zip(group, simulation.simulate(perceptron(simulation), group, [1], 0.002, 6, data)):
            assert curve[-1][0] == 24, row
            assert max(accuracy for *_, accuracy in curve) > 0.2, row


def test_steps_in_the_table_are_interpolated_and_compared_with_plain_training(simulation):
    row = simulation.Setting("EASGD", 2, {"alpha": 0.45}, rate=2)
    task = perceptron(simulation).task
    alone = simulation.runs_of(task, row, 0.002, [[(200, 0, 0.86), (400, 0, 0.88)]])
    runs = simulation.runs_of(task, row, 0.004, [[(100, 0, 0.86), (200, 0, 0.88)]])
    expected = ["EASGD", "2", "alpha 0.45, every 10, rate x2", "150, 2.00 x", "200, 2.00 x", "never", "0.8800"]
    assert simulation.line(task, row, runs, alone) == expected


def test_the_character_lstm_is_that_of_torch(simulation):
    """Without peepholes, which torch has none of; and two models do not see each other."""
    torch = simulation.torch
    network = simulation.NETWORKS["stdlib-lstm"]()
    flat = torch.stack([network.initial(seed) for seed in (1, 2)])
    embedding, w_in, w_hidden, bias, peepholes, w_out, b_out = network.views(flat)
    peepholes.zero_()
    bias.uniform_(-1, 1)
    x = torch.as_tensor(RANDOM.randint(0, 97, (2, 3, 50)))
    found = network.logits(flat, x).view(2, 3, 50, 97)
    lstm = torch.nn.LSTM(32, 64, batch_first=True)
    for model in range(2):
        with torch.no_grad():
            lstm.weight_ih_l0.copy_(w_in[model].T)
            lstm.weight_hh_l0.copy_(w_hidden[model].T)
            lstm.bias_ih_l0.copy_(bias[model])
            lstm.bias_hh_l0.zero_()
            expected = lstm(embedding[model][x[model]])[0] @ w_out[model] + b_out[model]
        np.testing.assert_allclose(found[model], expected, rtol=0, atol=1e-5)


def test_peepholes_act_on_their_gates(simulation):
    """One step by hand, with all weights 0 but the input's: i = f = o = s(1 + peephole c), g = tanh(1)."""
    torch = simulation.torch
    network = simulation.NETWORKS["stdlib-lstm"]()
    flat = torch.zeros(1, network.initial(1).numel())
    _, _, _, bias, peepholes, w_out, _ = network.views(flat)
    bias.fill_(1.0)
    peepholes.copy_(torch.tensor([0.5, -1.0, 2.0])[None, :, None].expand_as(peepholes))
    w_out[:, 0, 0] = 1.0

    def sigmoid(value):
        return 1 / (1 + np.exp(-value))

    cell, expected = 0.0, []
    for _ in range(3):
        new = sigmoid(1 - cell) * cell + sigmoid(1 + 0.5 * cell) * np.tanh(1.0)
        expected.append(sigmoid(1 + 2.0 * new) * np.tanh(new))
        cell = new
    found = network.logits(flat, torch.zeros(1, 1, 3, dtype=torch.long))
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-5)


def test_a_clipped_lstm_learns_and_bits_fall(simulation):
    torch = simulation.torch
    network = simulation.NETWORKS["stdlib-lstm"]()
    text = torch.as_tensor(RANDOM.randint(0, 4, (64, 50)))
    data = text, (text + 1) % 4, text[:8], (text[:8] + 1) % 4
    network.task = network.task._replace(batch_size=8)
    rows = [simulation.Setting("EASGD", 2, {"alpha": 0.45}, period=2)]
    (((curve,), _),) = simulation.simulate(network, rows, [1], 0.02, 8, data)
    assert curve[0][2] > 3 > curve[-1][2]


def test_the_convolutional_net_is_that_of_torch(simulation):
    """And two models do not see each other."""
    torch = simulation.torch
    network = simulation.NETWORKS["fashion-mnist-conv"]()
    flat = torch.stack([network.initial(seed) for seed in (1, 2)])
    w1, b1, w2, b2, w3, b3, w4, b4 = network.views(flat)
    for bias in (b1, b2, b3, b4):
        bias.uniform_(-1, 1)
    x = torch.as_tensor(RANDOM.rand(2, 3, 28, 28), dtype=torch.float32)
    found = network.logits(flat, x.flatten(2))
    functional = torch.nn.functional
    for model in range(2):
        seen = x[model][:, None]
        for weights, bias in ((w1, b1), (w2, b2)):  # rows are (channel, y, x)
            kernel = weights[model].T.reshape(weights.shape[2], -1, 3, 3)
            seen = functional.max_pool2d(functional.conv2d(seen, kernel, bias[model]).relu(), 2)
        hidden = seen.permute(0, 2, 3, 1).flatten(1) @ w3[model] + b3[model]  # the layer before has channels last
        np.testing.assert_allclose(found[model], hidden.relu() @ w4[model] + b4[model], rtol=0, atol=1e-4)


def test_the_transformer_is_causal_and_learns(simulation):
    """What comes later changes no prediction; and a text in which each character follows from the last is learned."""
    torch = simulation.torch
    network = simulation.NETWORKS["stdlib-transformer"]()
    text = torch.as_tensor(RANDOM.randint(0, 4, (64, 50)))
    flat = network.initial(1)[None]
    changed = text[:3].clone()
    changed[:, 30:] += 1
    before, after = (network.logits(flat, x[None]).view(3, 50, -1) for x in (text[:3], changed))
    np.testing.assert_allclose(before[:, :30], after[:, :30], rtol=0, atol=1e-5)
    assert abs(before[:, 30:] - after[:, 30:]).max() > 1e-3
    network.task = network.task._replace(batch_size=8)
    rows = [simulation.Setting("EASGD", 2, {"alpha": 0.45}, period=2)]
    data = text, (text + 1) % 4, text[:8], (text[:8] + 1) % 4
    (((curve,), _),) = simulation.simulate(network, rows, [1], 0.01, 8, data)
    assert curve[0][2] > 3 > curve[-1][2]


def test_momentum_is_torchs_and_an_average_is_that_of_the_paper(simulation, data):
    """Plain training by SGD; with k = 16 the weight of step t is 17 / (t + 16), and the first is 1."""
    torch = simulation.torch
    network = simulation.NETWORKS["fashion-mnist-sgd"]()
    models = simulation.Models([simulation.Setting("plain", 1, {})], [1], 0.1, "cpu", network)
    flat = network.initial(1)[None].requires_grad_()
    sgd = torch.optim.SGD([flat], lr=0.1, momentum=0.9)
    x, y = data[0][:128], data[1][:128]
    average = flat.detach().clone()
    for step in range(1, 6):
        models.step(x[None, None], y[None, None])
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(network.logits(flat, x[None])[0], y).backward()
        sgd.step()
        average += min(1, 17 / (step + 16)) * (flat.detach() - average)
    np.testing.assert_allclose(models.c, flat.detach(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(models.average, average, rtol=0, atol=1e-5)


@pytest.mark.parametrize("moments", ["pull", "adopt"])
def test_moments_are_exchanged_with_the_center(simulation, data, moments):
    """By hand, worker after worker; the springs of moments are as strong as those of parameters."""
    torch = simulation.torch
    row = simulation.Setting("EASGD", 2, {"alpha": 0.45}, period=1, moments=moments)
    models = simulation.Models([row], [1], 0.01, "cpu", perceptron(simulation))
    own = [torch.randn_like(models.x) for _ in models.moments]
    for mine, value in zip(models.moments, own):
        mine.copy_(value)
    for worker in range(2):
        models.exchange(worker, np.array([True]))
    for found, shared, value in zip(models.moments, models.shared_moments, own):
        center = torch.zeros_like(value[:, 0])
        for worker in range(2):
            x = value[:, worker]
            if moments == "pull":
                e = 0.45 * (x - center)
                x, center = x - e, center + e
            else:
                center = center + (x - center) / 2
                x = center
            np.testing.assert_allclose(found[:, worker], x, rtol=0, atol=1e-6)
        np.testing.assert_allclose(shared, center, rtol=0, atol=1e-6)


def test_hosts_add_the_difference_between_the_mean_of_the_copies_and_their_own(simulation):
    import hosts_learning_simulation as hosts
    import torch
    from scripts.simulated_networks import NETWORKS

    place = hosts.Place(2, 2, every=3)
    row = hosts.settings(place)["AveragedEASGD"]
    models = hosts.Hosts(place, row, [1, 2], rate=0.01, network=NETWORKS["fashion-mnist"]())
    rows = torch.rand(5, 4, 2, 8, 784), torch.randint(10, (5, 4, 2, 8))  # for 5 steps, of 2 hosts with 2 seeds each
    alone = hosts.Hosts(place._replace(every=0), row, [1, 2], 0.01, NETWORKS["fashion-mnist"]())
    for step in range(5):
        if step == 3:
            copies = models.c.clone()
        models.step(rows[0][step], rows[1][step])
        alone.step(rows[0][step], rows[1][step])
    mean = copies.unflatten(0, (2, 2)).mean(0).repeat(2, 1)
    for name, moved in (("c", mean - copies), ("x", (mean - copies)[:, None])):
        torch.testing.assert_close(getattr(models, name), getattr(alone, name) + moved)
    torch.testing.assert_close(models.own["x_old"], alone.own["x_old"] + (mean - copies)[:, None])


def test_the_hidden_matrices_of_muon_go_as_with_that_of_keras_and_all_else_with_adam(simulation):
    import keras
    import torch
    from scripts.simulated_networks import NETWORKS

    network, plain = NETWORKS["stdlib-transformer-muon"](), NETWORKS["stdlib-transformer"]()
    row = simulation.Setting("averaged gradients", 1, {})
    models, adam = (simulation.Models([row], [1], 0.01, "cpu", each) for each in (network, plain))
    shapes = [network.shapes[place] for place in network.hidden]
    assert len(shapes) == 8
    assert set(shapes) == {(64, 192), (64, 64), (64, 256), (256, 64)}
    options = {"learning_rate": 0.01, "weight_decay": None, "adam_weight_decay": 0.0}
    variables = [keras.Variable(each[0]) for each in network.views(models.c)]
    kept = [variables[place] for place in network.hidden]
    muon = keras.optimizers.Muon(**options)
    random = torch.Generator().manual_seed(2)
    network.clip = plain.clip = 0
    nothing = torch.zeros(1, 1, 1)
    for _ in range(3):
        g = torch.randn(models.x.shape, generator=random)
        for each in (models, adam):
            each.gradients = lambda *args, g=g: g
            each.step(nothing, nothing)
        muon.apply([network.views(g[0])[place][0] for place in network.hidden], kept)
    for place, (found, usual) in enumerate(zip(network.views(models.x[0]), network.views(adam.x[0]))):
        if place in network.hidden:
            expected = torch.as_tensor(keras.ops.convert_to_numpy(variables[place]))
            torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-5)
        else:
            torch.testing.assert_close(found, usual)
