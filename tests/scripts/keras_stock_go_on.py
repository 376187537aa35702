"""A model of a class of its own that is not built before fit; saved, loaded, and trained on."""

import keras
import numpy as np
from keras import layers


@keras.saving.register_keras_serializable()
class MLP(keras.Model):
    def __init__(self, hidden_units=16, **kwargs):
        super().__init__(**kwargs)
        self.hidden_units = hidden_units
        self.dense = layers.Dense(hidden_units, activation="relu")
        self.dropout = layers.Dropout(0.2)
        self.out = layers.Dense(3, activation="softmax")

    def call(self, inputs, training=False):
        return self.out(self.dropout(self.dense(inputs), training=training))

    def get_config(self):
        return {**super().get_config(), "hidden_units": self.hidden_units}


x = np.random.random((300, 10)).astype("float32")
y = np.random.randint(3, size=(300,))

first = MLP()
first.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
first.fit(x, y, epochs=1)
first.save("my_model.keras")

model = keras.models.load_model("my_model.keras")
np.testing.assert_allclose(first.predict(x), model.predict(x), rtol=1e-4, atol=1e-6)
history = model.fit(x, y, epochs=2, initial_epoch=1)
model.save_weights("my.weights.h5")
model.load_weights("my.weights.h5")
