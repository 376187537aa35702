"""The Lasagne networks of examples/zoo: as many parameters as the papers' networks, smaller variants, running means."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from platoon_base import compat

compat.apply()
theano = pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")

import lasagne
import numpy as np
import theano.tensor as T
from lasagne.layers import InputLayer, count_params, get_all_params, get_output, get_output_shape

from platoon_plugins.lasagne.graph import find_statistics, shared_variables

pytestmark = pytest.mark.theano
ZOO = Path(__file__).parents[2] / "examples" / "zoo"
SMALLEST = {"alexnet": 67, "googlenet": 32, "vgg16": 32, "resnet50": 32}


class QuickZeros(np.random.RandomState):
    """Draws zeros: the values of 138 million weights take 20 s, and their number does not depend on them."""

    def normal(self, loc=0.0, scale=1.0, size=None):
        return np.zeros(size)


@pytest.fixture
def models(monkeypatch):
    monkeypatch.syspath_prepend(str(ZOO))
    import lasagne_models

    before = lasagne.random.get_rng()
    yield lasagne_models
    lasagne.random.set_rng(before)


@pytest.mark.parametrize(
    ("name", "trainable", "statistics"),
    [
        ("alexnet", 62_378_344, 0),  # one tower; with the paper's groups 60,965,224
        ("googlenet", 6_998_552, 0),  # without auxiliary classifiers
        ("vgg16", 138_357_544, 0),
        ("resnet50", 25_557_032, 53_120),
    ],
)
def test_the_number_of_parameters_is_the_published_one(models, name, trainable, statistics):
    lasagne.random.set_rng(QuickZeros(0))
    network = models.MODELS[name]()
    assert count_params(network, trainable=True) == trainable
    assert count_params(network, trainable=False) == statistics
    assert get_output_shape(network) == (None, 1000)


@pytest.mark.parametrize("name", SMALLEST)
def test_small_variants_have_few_parameters_and_their_classes(models, name):
    network = models.MODELS[name]((1, SMALLEST[name], SMALLEST[name]), classes=10, width=0.1)
    assert count_params(network, trainable=True) < 400_000
    assert get_output_shape(network) == (None, 10)


@pytest.mark.parametrize("name", SMALLEST)
def test_images_that_are_too_small_are_refused(models, name):
    size = SMALLEST[name] - 1
    with pytest.raises(ValueError, match=f"got shape=.*at least {SMALLEST[name]} x {SMALLEST[name]} pixels; pass"):
        models.MODELS[name]((3, SMALLEST[name], size), width=0.1)


def test_batch_normalization_is_that_of_the_paper_and_has_running_statistics(models):
    x = T.tensor4("x")
    layer = models.BatchNorm(InputLayer((None, 2, 3, 3), x), factor=0.25)
    layer.gamma.set_value(np.array([2, 3], "float32"))
    layer.beta.set_value(np.array([1, -1], "float32"))
    rows = np.random.RandomState(1).normal(4, 2, (5, 2, 3, 3)).astype("float32")
    output = get_output(layer)
    found = find_statistics(shared_variables([output]), [], [])
    assert {each.container for each in found} == {layer.mean.container, layer.variance.container}
    assert get_all_params(layer, trainable=True) == [layer.gamma, layer.beta]

    # FAST_COMPILE does without a C compiler, which takes most of a minute here.
    train = theano.function([x], output, mode="FAST_COMPILE")
    test = theano.function([x], get_output(layer, deterministic=True), mode="FAST_COMPILE")
    mean, variance = rows.mean((0, 2, 3), dtype="float64"), rows.var((0, 2, 3), dtype="float64")

    def normal(mean, variance):
        shape = (1, 2, 1, 1)
        scale, shift = np.array([2, 3]).reshape(shape), np.array([1, -1]).reshape(shape)
        return (rows - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + 1e-4) * scale + shift

    np.testing.assert_allclose(train(rows), normal(mean, variance), rtol=1e-4, atol=1e-4)
    number = rows.size / 2  # values of a channel; the running variance is that of the population
    means, variances = 0.25 * mean, 0.75 + 0.25 * variance * number / (number - 1)
    np.testing.assert_allclose(layer.mean.get_value(), means, rtol=1e-4)
    np.testing.assert_allclose(layer.variance.get_value(), variances, rtol=1e-4)
    np.testing.assert_allclose(test(rows), normal(means, variances), rtol=1e-4, atol=1e-4)


# Lasagne 0.1 calls Theano by names of before 1.0.
@pytest.mark.filterwarnings("ignore:(DEPRECATION|The `image_shape` keyword):UserWarning")
@pytest.mark.parametrize("rule", ["bsp", "easgd"])
def test_the_deepest_network_has_gradients(models, rule):
    import zoo_lasagne

    limit = sys.getrecursionlimit()
    try:
        options = Namespace(model="resnet50", width=0.05, rule=rule, rate=0.01)
        network, _, _, updates = zoo_lasagne.build(options, (3, 32, 32), 10)
        assert set(get_all_params(network, trainable=True)) <= set(updates)
    finally:
        sys.setrecursionlimit(limit)
