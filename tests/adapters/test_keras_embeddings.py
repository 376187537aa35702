"""Gradients of embeddings on TensorFlow, which are lists of rows, and losses that it adds up itself."""

import pytest
from keras_here import keras

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="about TensorFlow: run it in .nox/tf (make test)"
    ),
]

TOKENS = """
rng = np.random.RandomState(0)
tokens, labels = rng.randint(0, 6, (33, 7)), rng.randint(0, 3, 33)  # rank 0 has three batches, rank 1 two
weights = rng.uniform(0.1, 3, 33).astype("float32")


def require_equal(name, build, fits=1, tolerance=1e-5, **options):
    results = []
    for wrap in (lambda optimizer: optimizer, DistributedOptimizer):
        keras.utils.set_random_seed(5)
        model = build(wrap)
        start = flat(model.get_weights())
        alone = not results
        for _ in range(fits):
            x, y, w = (tokens, labels, weights) if alone else shard(tokens, labels, weights)
            model.fit(x, y, sample_weight=w, batch_size=16 if alone else 8, epochs=2, shuffle=False, verbose=0,
                      callbacks=[] if alone else distribute(), **options)
        results.append(flat(model.get_weights()))
    one, ours = results
    assert abs(one - start).max() > 0.02, (name, abs(one - start).max())
    assert abs(one - ours).max() < tolerance, (name, abs(one - ours).max(), abs(one - start).max())
    assert (everyones(ours) == ours).all(), name
"""


def test_optimizers_get_the_look_ups_of_one_process(run_keras):
    """The same row many times in a batch, in two layers of which one has a dense gradient too; uneven batches."""
    run_keras(
        TOKENS
        + """
O = keras.optimizers

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
require_equal("adam", lambda wrap: text(wrap(O.Adam(0.02))), fits=2)
norms = lambda: O.Adagrad(0.1, clipnorm=0.05, gradient_accumulation_steps=2)
require_equal("norms", lambda wrap: text(wrap(norms()), loss=by_weights))
require_equal("eager", lambda wrap: text(wrap(O.RMSprop(0.02, clipvalue=0.01)), eager=True))
scaled = lambda: O.LossScaleOptimizer(O.Adam(0.02), initial_scale=2.0**8)
require_equal("mixed", lambda wrap: text(wrap(scaled()), policy="mixed_float16"), tolerance=0.01)
"""
    ).require_success()


def test_a_loss_without_a_reduction_is_a_sum(run_keras):
    run_keras(
        TOKENS
        + """
def plain(optimizer):
    model = keras.Sequential([keras.Input((7,)), L.Dense(3, activation="softmax")])
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(reduction=None))
    return model

require_equal("none", lambda wrap: plain(wrap(keras.optimizers.SGD(0.01))), tolerance=2e-5)
"""
    ).require_success()
