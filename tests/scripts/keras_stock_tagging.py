"""Tags for the words of sentences of several lengths: masks, and a loss for each word."""

import keras
import numpy as np
from keras import layers

vocab_size, num_tags, maxlen = 40, 4, 9
lengths = np.random.randint(3, maxlen + 1, size=256)
words = np.random.randint(1, vocab_size, size=(256, maxlen)) * (np.arange(maxlen) < lengths[:, None])
tags = words % num_tags

model = keras.Sequential(
    [
        layers.Embedding(vocab_size, 8, mask_zero=True),
        layers.GRU(16, return_sequences=True),
        layers.TimeDistributed(layers.Dense(num_tags, activation="softmax")),
    ]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(words, tags, batch_size=32, epochs=2, validation_split=0.125)
