"""A masked language model: attention in layers of its own, weights that skip words, predictions within a callback."""

import keras
import numpy as np
from keras import layers, ops

MAX_LEN, VOCAB_SIZE, EMBED_DIM, MASK = 8, 30, 16, 29


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        return self.token_emb(x) + self.pos_emb(positions)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim // num_heads)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs, training=None):
        attn_output = self.dropout1(self.att(inputs, inputs), training=training)
        out1 = self.layernorm1(inputs + attn_output)
        return self.layernorm2(out1 + self.dropout2(self.ffn(out1), training=training))


def get_masked_input_and_labels(encoded_texts):
    inp_mask = np.random.rand(*encoded_texts.shape) < 0.15
    encoded_texts_masked = np.copy(encoded_texts)
    encoded_texts_masked[inp_mask] = MASK
    sample_weights = np.ones(encoded_texts.shape)
    sample_weights[~inp_mask] = 0
    return encoded_texts_masked, np.copy(encoded_texts), sample_weights


class MaskedTextGenerator(keras.callbacks.Callback):
    def __init__(self, sample_tokens, top_k=3):
        super().__init__()
        self.sample_tokens = sample_tokens
        self.k = top_k

    def on_epoch_end(self, epoch, logs=None):
        prediction = self.model.predict(self.sample_tokens)
        masked_index = np.where(self.sample_tokens == MASK)[1]
        mask_prediction = prediction[0][masked_index]
        print("top tokens:", mask_prediction[0].argsort()[-self.k :][::-1])


texts = (np.random.randint(1, 20, size=(300, 1)) + np.arange(MAX_LEN)).astype("int32")
x_masked_train, y_masked_labels, sample_weights = get_masked_input_and_labels(texts)
sample = texts[:1].copy()
sample[0, 3] = MASK

inputs = layers.Input((MAX_LEN,), dtype="int32")
embedded = TokenAndPositionEmbedding(MAX_LEN, VOCAB_SIZE, EMBED_DIM)(inputs)
encoded = TransformerBlock(EMBED_DIM, 2, 32)(embedded)
mlm_output = layers.Dense(VOCAB_SIZE, name="mlm_cls", activation="softmax")(encoded)
model = keras.Model(inputs, mlm_output, name="masked_bert_model")
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="sparse_categorical_crossentropy")
model.summary()
history = model.fit(
    x_masked_train,
    y_masked_labels,
    sample_weight=sample_weights,
    epochs=2,
    batch_size=32,
    callbacks=[MaskedTextGenerator(sample)],
)
