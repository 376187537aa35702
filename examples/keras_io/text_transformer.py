"""A small transformer tells texts about Python's language from documentation of its library.

Start it with `platoon launch -n 2 examples/keras_io/text_transformer.py`, or with
`python examples/keras_io/text_transformer.py` alone. Three lines make it a distributed one: the import, the callbacks,
and the call of fit. Python itself brings the texts.
"""

import collections
import email
import inspect
import json
import logging
import pydoc_data.topics
import re
import statistics
import tarfile
import unittest

import keras
import numpy as np
from keras import layers, ops

from platoon_plugins.keras import distribute, shard

vocab_size = 2000
maxlen = 40
batch_size = 32
epochs = 6

topics = [text for topic in pydoc_data.topics.topics.values() for text in topic.split("\n\n")]
modules = [collections, email, inspect, json, logging, re, statistics, tarfile, unittest, np, np.linalg, np.random]
members = [member for module in modules for member in [module, *vars(module).values()]]
members += [inner for member in members if inspect.isclass(member) for inner in vars(member).values()]
documented = [text for member in members for text in (inspect.getdoc(member) or "").split("\n\n")]


def words_of(texts):
    found = [re.findall("[a-z]+", text.lower()) for text in dict.fromkeys(texts)]
    return [words for words in found if len(words) >= 8]


texts = [words_of(topics), words_of(documented)]
texts = [words[: min(map(len, texts))] for words in texts]
labels = np.repeat([0, 1], [len(words) for words in texts]).astype("float32")
counts = collections.Counter(word for words in texts[0] + texts[1] for word in words)
index = {word: i + 1 for i, (word, _) in enumerate(counts.most_common(vocab_size - 1))}
tokens = [[index[word] for word in words if word in index][:maxlen] for words in texts[0] + texts[1]]
tokens = keras.utils.pad_sequences(tokens, maxlen=maxlen, padding="post")
order = np.random.RandomState(0).permutation(len(tokens))
train, valid = [(tokens[rows], labels[rows]) for rows in np.split(order, [int(0.8 * len(order))])]


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        attended = self.layernorm1(inputs + self.dropout1(self.att(inputs, inputs)))
        return self.layernorm2(attended + self.dropout2(self.ffn(attended)))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(vocab_size, embed_dim)
        self.pos_emb = layers.Embedding(maxlen, embed_dim)

    def call(self, x):
        return self.token_emb(x) + self.pos_emb(ops.arange(0, ops.shape(x)[-1]))


inputs = keras.Input((maxlen,), dtype="int32")
x = TokenAndPositionEmbedding(maxlen, vocab_size, 32)(inputs)
x = TransformerBlock(embed_dim=32, num_heads=2, ff_dim=32)(x)
x = layers.GlobalAveragePooling1D()(x)
x = layers.Dropout(0.1)(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(2e-3), loss="binary_crossentropy", metrics=["accuracy"])
callbacks = distribute([keras.callbacks.EarlyStopping(patience=3)])
history = model.fit(*shard(*train), batch_size, epochs, verbose=2, validation_data=shard(*valid), callbacks=callbacks)
print(f"Validation accuracy: {history.history['val_accuracy'][-1]:.4f}")
