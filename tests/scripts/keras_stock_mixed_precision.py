"""Mixed precision as a policy for all layers, an average of the weights in the optimizer, and clipped gradients."""

import keras
from keras import layers
from sklearn.datasets import load_digits

keras.mixed_precision.set_global_policy("mixed_float16")

x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1).astype("float32") / 16
inputs = keras.Input((8, 8, 1))
hidden = layers.RandomTranslation(0.1, 0.1)(inputs)
hidden = layers.SeparableConv2D(16, 3, padding="same", use_bias=False)(hidden)
hidden = layers.BatchNormalization()(hidden)
hidden = layers.Activation("relu")(hidden)
hidden = layers.GlobalAveragePooling2D()(hidden)
hidden = layers.Dense(10)(hidden)
outputs = layers.Activation("softmax", dtype="float32")(hidden)
model = keras.Model(inputs, outputs)
optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4, clipnorm=1.0, use_ema=True, ema_momentum=0.9)
model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
history = model.fit(
    x[:500],
    y[:500],
    epochs=2,
    validation_data=(x[500:600], y[500:600]),
    callbacks=[
        keras.callbacks.SwapEMAWeights(),
        keras.callbacks.TerminateOnNaN(),
    ],
)
keras.mixed_precision.set_global_policy("float32")
