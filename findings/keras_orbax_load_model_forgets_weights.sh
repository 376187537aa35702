#!/usr/bin/env bash
# Guess: what OrbaxCheckpoint saved comes back by load_model and by load_weights: weights, Adam's moments and its count.
# Happens: load_model of a Sequential model returns weights that are drawn anew, without an error or a warning, beside the
#   saved count of steps and learning rate: values are assigned by the variables' paths, the rebuilt model's variables
#   are "dense/kernel" where the saved ones are "model/dense/kernel", and what has no partner is left out. load_weights
#   into the same model restores weights and count, and leaves the moments out, as the optimizer is not built yet. A
#   functional model is restored by both, apart from these moments. The same on JAX.
# Why it matters: a job that resumes so starts from other weights on each worker, or from rank 0's random ones, with a
#   count of steps that ends warm-up and bias correction; the loss alone shows it.
# Versions: Keras 3.15.1, orbax-checkpoint 0.12.8, torch 2.13.0.
# Source: set_state_tree and _assign_variable_values in keras/src/models/model.py; keras/src/saving/saving_api.py.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check keras==3.15.1 orbax-checkpoint==0.12.8 torch==2.13.0
cat > "$folder/save.py" <<'END'
import os
import sys

import keras
import numpy as np


def build(kind):
    if kind == "Sequential":
        layers = [keras.Input((3,)), keras.layers.Dense(2, name="a"), keras.layers.Dense(1, name="b")]
        return keras.Sequential(layers, name="model")
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1, name="b")(keras.layers.Dense(2, name="a")(inputs))
    return keras.Model(inputs, outputs, name="model")


task, kind = sys.argv[1:]
x = np.ones((8, 3), "float32")
model = build(kind)
model.compile("adam", "mse")
if task == "save":
    saver = keras.callbacks.OrbaxCheckpoint(directory=os.path.abspath(f"saved-{kind}"), save_freq="epoch")
    model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[saver])
    np.savez(f"{kind}.npz", *model.get_weights())
else:
    file = np.load(f"{kind}.npz")
    saved = [file[name] for name in file.files]

    def report(way, model):
        equal = all(np.array_equal(a, b) for a, b in zip(saved, model.get_weights()))
        moments = [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables if "momentum" in v.path]
        print(kind, way, "weights equal", equal, "steps", int(model.optimizer.iterations.value),
              "moments kept", any(m.any() for m in moments))

    report("load_model", keras.saving.load_model(os.path.abspath(f"saved-{kind}")))
    model.load_weights(os.path.abspath(f"saved-{kind}"))
    report("load_weights", model)
END
run() { (cd "$folder" && KERAS_BACKEND=torch CUDA_VISIBLE_DEVICES= venv/bin/python save.py "$@" 2>/dev/null | grep 'weights equal' || true); }
run save Sequential
run save functional
seen=$(run load Sequential; run load functional)
echo "$seen"
[ "$seen" = "Sequential load_model weights equal False steps 8 moments kept False
Sequential load_weights weights equal True steps 8 moments kept False
functional load_model weights equal True steps 8 moments kept True
functional load_weights weights equal True steps 8 moments kept False" ]
