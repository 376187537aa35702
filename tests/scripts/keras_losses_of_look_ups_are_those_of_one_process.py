"""The same row many times in a batch, in two layers of which one has a dense gradient too; uneven batches."""

from keras_preamble import *
from keras_losses_tokens import *

optimizers = keras.optimizers


class Tied(L.Embedding):  # all of its gradient is dense
    def call(self, inputs):
        return super().call(inputs) @ keras.ops.cast(self.embeddings[:4, :4], self.compute_dtype)


def text(optimizer, eager=False, loss="sparse_categorical_crossentropy", policy="float32"):
    keras.config.set_dtype_policy(policy)
    start = L.Input((7,), dtype="int32")
    twice = L.Embedding(6, 4)
    hidden = twice(start) + twice((start + 1) % 6) + Tied(9, 4)(start)
    out = L.Dense(3, activation="softmax", dtype="float32")(L.GlobalAveragePooling1D()(hidden))
    model = keras.Model(start, out)
    model.compile(optimizer, loss=loss, run_eagerly=eager)
    keras.config.set_dtype_policy("float32")
    return model


by_weights = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
require_equal("adam", lambda wrap: text(wrap(optimizers.Adam(0.02))), fits=2)
norms = lambda: optimizers.Adagrad(0.1, clipnorm=0.05, gradient_accumulation_steps=2)
require_equal("norms", lambda wrap: text(wrap(norms()), loss=by_weights))
require_equal("eager", lambda wrap: text(wrap(optimizers.RMSprop(0.02, clipvalue=0.01)), eager=True))
scaled = lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.02), initial_scale=2.0**8)
require_equal("mixed", lambda wrap: text(wrap(scaled()), policy="mixed_float16"), tolerance=0.01)
