"""Usage: FOLDER WAY RULE PERIOD: a Keras fit on JAX.

Prints the bits of each worker's weights, how often variables got the state, and whether the model is gone behind it.

WAY is what is done to the model: "nothing"; "asks": a callback asks for the state after each batch; "copies": the step
is wrapped by a function that copies the lists of the state; "keeps": by one that within an epoch passes on what the
step before has returned, as a trainer may that has lists of its own; "sets" and "asks and sets": a callback halves the
weights at the end of the seventh batch, by the variables; "fails": the fourth step of the second epoch, behind a
synchronization, raises an error, which the script catches.
"""

import contextlib
import functools
import gc
import hashlib
import sys
import weakref

import keras
import numpy as np

from platoon_base import connect
from platoon_base.rules import parse_rule
from platoon_plugins.keras import distribute, shard

way, rule, period = sys.argv[2], sys.argv[3], int(sys.argv[4])


class Counting(keras.Model):
    syncs = 0

    def jax_state_sync(self):
        self.syncs += not self._jax_state_synced
        super().jax_state_sync()


class Meddler(keras.callbacks.Callback):
    """Does what the way says."""

    done = 0

    def on_epoch_begin(self, epoch, logs=None):
        plain = self.model.train_function
        if way == "copies" and not hasattr(plain, "copies"):

            @functools.wraps(plain)
            def step(state, *args):
                logs, state = plain(tuple(list(each) for each in state), *args)
                return logs, tuple(list(each) for each in state)

            step.copies = True
            self.model.train_function = step
        if way == "keeps" and hasattr(plain, "kept"):
            plain.kept.clear()
        elif way == "keeps":
            kept = []

            @functools.wraps(plain)
            def keeping(state, *args):
                logs, state = plain(kept.pop() if kept else state, *args)
                kept.append(tuple(list(each) for each in state))
                return logs, state

            keeping.kept = kept
            self.model.train_function = keeping
        if way == "fails" and epoch == 1:
            steps = iter(range(4))

            @functools.wraps(plain)
            def failing(*args):
                if next(steps) == 3:
                    raise RuntimeError("as the test asks")
                return plain(*args)

            self.model.train_function = failing

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        if way.startswith("asks"):
            self.model.jax_state_sync()
        if "sets" in way and self.done == 7:
            self.model.jax_state_sync()
            self.model.set_weights([values / 2 for values in self.model.get_weights()])


worker = connect()
keras.utils.set_random_seed(1)
rows = np.random.default_rng(2)
x = rows.standard_normal((96, 6)).astype("float32")
y = (x[:, :1] > x[:, 1:2]).astype("float32")
inputs = keras.Input((6,))
hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="relu")(inputs))
model = Counting(inputs, keras.layers.Dense(1)(hidden))
model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=2 if way.endswith("two") else 1)
with contextlib.suppress(RuntimeError) if way == "fails" else contextlib.nullcontext():
    model.fit(
        *shard(x, y),
        batch_size=4,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=distribute([Meddler()], rule=parse_rule(rule, "the test"), every_n_batches=period),
    )
model.jax_state_sync()
values = model.get_weights() + [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]
bits = hashlib.sha256(b"".join(np.ascontiguousarray(value).tobytes() for value in values)).hexdigest()
syncs, gone = model.syncs, weakref.ref(model)
worker.release_shared_params()
del model, inputs, hidden
gc.collect()
print(f"rank {worker.global_rank}: {bits} {syncs} {'stays' if gone() else 'gone'}", flush=True)
