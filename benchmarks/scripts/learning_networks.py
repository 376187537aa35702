"""The networks of benchmarks/learning.py in Keras, as models that are not compiled."""

from __future__ import annotations

from typing import Any

import keras
from learning_tasks import Network, Residual, Transformer

HEADS = 4


def build(network: Any) -> Any:
    """Return the model of a Network, a Residual or a Transformer."""
    return {Network: layered, Residual: residual, Transformer: transformer}[type(network)](network)


def layered(network: Network) -> Any:
    layers = [keras.layers.InputLayer(network.inputs)]
    for filters in network.filters:
        layers += [keras.layers.Conv2D(filters, 3, activation="relu"), keras.layers.MaxPooling2D(2)]
    layers += [keras.layers.Flatten()] * bool(network.filters)
    layers += [keras.layers.Dense(units, activation="relu") for units in network.dense]
    layers += [keras.layers.Dropout(network.dropout)] * bool(network.dropout)
    return keras.Sequential([*layers, keras.layers.Dense(network.classes, activation="softmax")])


def residual(network: Residual) -> Any:
    """ResNet of two convolutions in each block, 6n + 2 layers for n blocks in a stage (1512.03385, section 4.2)."""
    inputs = keras.Input(network.inputs)
    seen = _normalized(inputs, network.filters[0])
    for stage, filters in enumerate(network.filters):
        for block in range(network.blocks):
            stride = 2 if stage and not block else 1
            found = _normalized(_normalized(seen, filters, stride), filters, relu=False)
            if stride > 1 or seen.shape[-1] != filters:
                seen = keras.layers.Conv2D(filters, 1, stride, use_bias=False)(seen)
            seen = keras.layers.ReLU()(keras.layers.Add()([seen, found]))
    seen = keras.layers.GlobalAveragePooling2D()(seen)
    return keras.Model(inputs, keras.layers.Dense(network.classes, activation="softmax")(seen))


def _normalized(seen: Any, filters: int, stride: int = 1, relu: bool = True) -> Any:
    seen = keras.layers.Conv2D(filters, 3, stride, "same", use_bias=False, kernel_initializer="he_normal")(seen)
    seen = keras.layers.BatchNormalization(momentum=0.9)(seen)
    return keras.layers.ReLU()(seen) if relu else seen


def transformer(network: Transformer) -> Any:
    """Blocks of causal attention and a relu layer four times as wide, normalized before each."""
    width, inputs = network.width, keras.Input((network.length,), dtype="int32")
    places = keras.ops.cumsum(keras.ops.ones_like(inputs), axis=1) - 1  # a part of the graph, as parameters follow
    seen = keras.layers.Embedding(network.classes, width)(inputs)
    seen = seen + keras.layers.Embedding(network.length, width)(places)
    for _ in range(network.blocks):
        found = keras.layers.LayerNormalization()(seen)
        attention = keras.layers.MultiHeadAttention(HEADS, width // HEADS)
        seen = seen + attention(found, found, use_causal_mask=True)
        found = keras.layers.Dense(4 * width, "relu")(keras.layers.LayerNormalization()(seen))
        seen = seen + keras.layers.Dense(width)(found)
    seen = keras.layers.LayerNormalization()(seen)
    return keras.Model(inputs, keras.layers.Dense(network.classes, "softmax")(seen))
