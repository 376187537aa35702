"""The Keras networks of examples/zoo: as many weights as the published networks, and smaller variants."""

from pathlib import Path

import pytest
from keras_here import keras, needs_keras_3

pytestmark = [pytest.mark.keras, needs_keras_3]
ZOO = Path(__file__).parents[2] / "examples" / "zoo"
STATISTICS = 53_120  # of ResNet-50


@pytest.fixture
def models(monkeypatch):
    monkeypatch.syspath_prepend(str(ZOO))
    import keras_models

    return keras_models


@pytest.mark.parametrize(
    ("name", "weights", "trained"),
    [
        ("resnet50", 25_636_712, 25_557_032 + 26_560),  # the paper's, and the biases of the convolutions
        ("vgg16", 138_357_544, 138_357_544),
        # DeiT-S has 22,050,664, with a position for the class: two vectors of 384 more
        ("vit", 22_050_664 - 2 * 384, 22_050_664 - 2 * 384),
    ],
)
def test_the_number_of_weights_is_the_published_one(models, name, weights, trained):
    model = models.MODELS[name]()
    assert model.count_params() == weights
    assert sum(keras.ops.size(each) for each in model.trainable_weights) == trained
    assert weights - trained == (STATISTICS if name == "resnet50" else 0)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "vit"])
def test_small_variants_have_few_weights_and_their_classes(models, name):
    model = models.MODELS[name]((32, 32, 3), classes=10, width=0.1)
    assert model.count_params() < 400_000
    assert model.output_shape == (None, 10)


def test_images_that_patches_do_not_fill_are_refused(models):
    with pytest.raises(ValueError, match="got shape=.*16 x 16 pixels; pass sides that are multiples"):
        models.vit((40, 32, 3))
