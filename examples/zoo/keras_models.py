"""Three image networks in Keras 3: ResNet-50 and VGG-16 of keras.applications, and a vision transformer.

Each function returns a model, a softmax over the classes. ``shape`` is (height, width, channels) of an image. ``width``
multiplies the number of filters and units of every layer but the last.
"""

from __future__ import annotations

import keras
from keras import layers

__all__ = ["MODELS", "Positions", "narrowed", "resnet50", "vgg16", "vit"]


def resnet50(shape=(224, 224, 3), classes=1000, width=1.0):
    """Return ResNet-50 of keras.applications, untrained: 25,636,712 weights for 1000 classes.

    53,120 of them are statistics. Its convolutions have biases, 26,560 in all, which the paper's have not. The smallest
    image is 32 x 32.
    """
    return narrowed(keras.applications.ResNet50(weights=None, input_shape=shape, classes=classes), width)


def vgg16(shape=(224, 224, 3), classes=1000, width=1.0):
    """Return VGG-16 of keras.applications, untrained: 138,357,544 weights for 1000 classes.

    It has no dropout, which the paper's has. The smallest image is 32 x 32.
    """
    return narrowed(keras.applications.VGG16(weights=None, input_shape=shape, classes=classes), width)


def narrowed(model, width):
    """Return a new model of the same layers, with ``width`` times the filters and units in all but the last."""
    if width == 1:
        return model
    last = model.layers[-1].name

    def narrow(layer):
        config = layer.get_config()
        for name in {"filters", "units"} & set(config) if layer.name != last else ():
            config[name] = max(1, round(config[name] * width))
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=narrow)


class Positions(layers.Layer):
    """Adds a trained vector to each position of a sequence."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=shape[1:], initializer=keras.initializers.RandomNormal(stddev=0.02))

    def call(self, inputs):
        return inputs + self.vectors


def vit(shape=(224, 224, 3), classes=1000, width=1.0, patch=16, depth=12, heads=6):
    """Return a small vision transformer (ViT-S/16): 22,049,896 weights for 1000 classes.

    Patches of 16 x 16 pixels become vectors of 384 numbers; 12 blocks of attention and a perceptron follow, then the
    mean of all positions. The paper's has one more position, for the class, in place of that mean. ``width`` multiplies
    the size of a head's vectors, so that it stays divisible. The sides of an image are multiples of 16.

    References
    ----------
    Dosovitskiy and others: An Image is Worth 16x16 Words, 2020, arXiv:2010.11929.
    Touvron and others: Training data-efficient image transformers, 2020, arXiv:2012.12877 (the small variant).
    """
    if shape[0] % patch or shape[1] % patch:
        raise ValueError(
            f"got shape={shape}: patches are {patch} x {patch} pixels; pass sides that are multiples of it"
        )
    size_of_head = max(1, round(64 * width))
    size = heads * size_of_head
    inputs = keras.Input(shape)
    x = layers.Conv2D(size, patch, strides=patch, name="patches")(inputs)
    x = Positions()(layers.Reshape((-1, size))(x))
    for _ in range(depth):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, size_of_head)(y, y)])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dense(size)(layers.Dense(4 * size, activation="gelu")(y))
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(x), name="vit")


MODELS = {"resnet50": resnet50, "vgg16": vgg16, "vit": vit}
