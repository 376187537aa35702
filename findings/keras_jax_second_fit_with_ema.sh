#!/usr/bin/env bash
# Guess: an optimizer with use_ema=True trains on in a second fit, on JAX as on the other back ends.
# Happens: on JAX the second fit raises TypeError: 'NoneType' object is not callable; on torch it trains, but from the
#   averages, which the end of the first fit wrote into the weights: two fits of two epochs are not one fit of four.
# Why it matters: training in rounds (a fit for each round, then an average over workers) calls fit again and again.
# Versions: Keras 3.15.1, JAX 0.10.2, torch 2.13.0.
# Source: keras/src/optimizers/base_optimizer.py (finalize_variable_values), Keras's guide to use_ema.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check keras==3.15.1 jax==0.10.2 torch==2.13.0
cat > "$folder/fits.py" <<'END'
import keras
import numpy as np


def model():
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    made.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
    return made


x = np.linspace(0, 1, 64, dtype="float32").reshape(-1, 1)
one, two = model(), model()
one.fit(x, 3 * x, 8, epochs=4, shuffle=False, verbose=0)
two.fit(x, 3 * x, 8, epochs=2, shuffle=False, verbose=0)
try:
    two.fit(x, 3 * x, 8, epochs=2, shuffle=False, verbose=0)
    second = f"two fits {two.get_weights()[0].item():.3f}, one fit {one.get_weights()[0].item():.3f}"
except TypeError as error:
    second = f"the second fit raises TypeError: {error}"
print(keras.__version__, keras.backend.backend(), second)
END
seen=$(for backend in jax torch; do KERAS_BACKEND=$backend CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/fits.py" 2>/dev/null; done)
echo "$seen"
[ "$seen" = "3.15.1 jax the second fit raises TypeError: 'NoneType' object is not callable
3.15.1 torch two fits 0.943, one fit 1.166" ]
