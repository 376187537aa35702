#!/usr/bin/env bash
# Guess: with steps_per_execution=4 and 10 batches on_train_batch_end is called with 3, 7 and 9.
# Happens: with 3, 7 and 11, though 10 batches were trained and optimizer.iterations is 10. TensorFlow does the same; torch
#   refuses steps_per_execution.
# Why it matters: a callback that counts batches by the last index + 1, for a period between averages or for progress, counts
#   12; with shards of unequal length workers count on at different rates.
# Versions: Keras 3.15.1, JAX 0.10.2.
# Source: keras/src/trainers/epoch_iterator.py (_enumerate_iterator), keras/src/backend/jax/trainer.py.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check keras==3.15.1 jax==0.10.2
cat > "$folder/count.py" <<'END'
import keras
import numpy as np


class Ends(keras.callbacks.Callback):
    batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(int(batch))


model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=4)
model.fit(np.ones((10, 2)), np.ones((10, 1)), batch_size=1, verbose=0, callbacks=[Ends()])
print(keras.__version__, keras.backend.backend(), Ends.batches, "iterations", int(model.optimizer.iterations))
END
seen=$(KERAS_BACKEND=jax JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/count.py")
echo "$seen"
[ "$seen" = "3.15.1 jax [3, 7, 11] iterations 10" ]
