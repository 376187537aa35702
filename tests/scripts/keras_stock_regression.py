"""Regression with a Normalization layer that is adapted to the data."""

import keras
import numpy as np
from keras import layers

features = np.random.normal(loc=5.0, scale=3.0, size=(400, 9)).astype("float32")
targets = features @ np.random.normal(size=9) + np.random.normal(size=400)
train_features, test_features = features[:320], features[320:]
train_labels, test_labels = targets[:320], targets[320:]

normalizer = layers.Normalization(axis=-1)
normalizer.adapt(np.array(train_features))


def build_and_compile_model(norm):
    model = keras.Sequential([norm, layers.Dense(16, activation="relu"), layers.Dense(1)])
    model.compile(loss="mean_absolute_error", optimizer=keras.optimizers.Adam(0.01))
    return model


model = build_and_compile_model(normalizer)
model.summary()
history = model.fit(train_features, train_labels, validation_split=0.2, verbose=0, epochs=5)
test_results = model.evaluate(test_features, test_labels, verbose=0)
print("mean absolute error:", test_results)
model.save("dnn_model.keras")
reloaded = keras.models.load_model("dnn_model.keras")
assert np.isclose(test_results, reloaded.evaluate(test_features, test_labels, verbose=0), rtol=1e-3)
