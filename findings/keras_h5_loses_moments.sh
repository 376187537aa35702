#!/usr/bin/env bash
# Guess: a model saved as .h5 with Adam trains on after loading as one saved as .keras does: iterations, rate and moments
#   are in both files.
# Happens: from .h5 iterations and rate come back and moments do not: the loaded optimizer has 2 of 6 variables, and the
#   next fit raises ValueError. The same on torch and TensorFlow.
# Why it matters: a worker that resumes from .h5 cannot train on; if its optimizer is built first to avoid the error, it has
#   moments of zero and a step count that says they are warm, so Adam's first steps are too short, on this worker alone.
# Versions: Keras 3.15.1, JAX 0.10.2.
# Source: keras/src/legacy/saving/legacy_h5_format.py (load_model_from_hdf5).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check keras==3.15.1 jax==0.10.2
cat > "$folder/save.py" <<'END'
import keras
import numpy as np

x = np.ones((8, 2), "float32")
print(keras.__version__, keras.backend.backend())
for ending in ("keras", "h5"):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.Adam(0.1), keras.losses.MeanSquaredError())
    model.fit(x, x[:, :1], epochs=3, verbose=0)
    model.save(f"saved.{ending}")
    loaded = keras.models.load_model(f"saved.{ending}")
    found = len(loaded.optimizer.variables), int(loaded.optimizer.iterations)
    try:
        loaded.fit(x, x[:, :1], verbose=0)
        result = "trains on"
    except ValueError:
        result = "ValueError"
    print(ending, "variables", len(model.optimizer.variables), "loaded", found[0], "iterations", found[1], result)
END
seen=$(cd "$folder" && KERAS_BACKEND=jax JAX_PLATFORMS=cpu venv/bin/python save.py 2>/dev/null)
echo "$seen"
[ "$seen" = "3.15.1 jax
keras variables 6 loaded 6 iterations 3 trains on
h5 variables 6 loaded 2 iterations 3 ValueError" ]
