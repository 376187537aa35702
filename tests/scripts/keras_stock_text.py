"""A bidirectional LSTM for short texts of word numbers: an embedding, validation_data as a tuple."""

import keras
import numpy as np
from keras import layers

max_features = 50
maxlen = 8

x = np.random.randint(1, max_features, size=(300, maxlen))
y = (x[:, :4].sum(axis=1) > x[:, 4:].sum(axis=1)).astype("int32")
x_train, y_train, x_val, y_val = x[:240], y[:240], x[240:], y[240:]
print(len(x_train), "Training sequences")
print(len(x_val), "Validation sequences")

inputs = keras.Input(shape=(None,), dtype="int32")
hidden = layers.Embedding(max_features, 8)(inputs)
hidden = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(hidden)
hidden = layers.Bidirectional(layers.LSTM(8))(hidden)
outputs = layers.Dense(1, activation="sigmoid")(hidden)
model = keras.Model(inputs, outputs)
model.summary()

model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=32, epochs=2, validation_data=(x_val, y_val))
