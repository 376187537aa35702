#!/usr/bin/env bash
# Guess: the gradient of |x| at 0 is 0, the sign of 0, in torch, TensorFlow and JAX.
# Happens: in JAX it is 1. So Keras's mean absolute error has the gradient -1 where a prediction is exactly right: a weight
#   of 0 that is right goes to 1 and back, step after step, and under L1(0.1) to -0.1 and back. On torch and TensorFlow
#   both stay 0. jnp.linalg.norm(x, 1) has it too.
# Why it matters: weights that are zero (biases at the start, pruned or padded ones) stay zero on torch and move on JAX, so
#   the same script differs by back end from the first step on; sums of such gradients over N workers do not cancel.
# Versions: JAX 0.10.2, Keras 3.15.1, torch 2.13.0, tensorflow-cpu 2.21.0.
# Source: _abs_jvp_rule in jax/_src/lax/lax.py: select(x >= 0, g, -g).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check keras==3.15.1 jax==0.10.2 torch==2.13.0 tensorflow-cpu==2.21.0
cat > "$folder/zero.py" <<'END'
import keras
import numpy as np

ones = np.ones((1, 1), "float32")


def steps(loss, regularizer=None):
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", kernel_regularizer=regularizer)
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(keras.optimizers.SGD(1.0), loss)
    seen = []
    for _ in range(3):
        model.fit(ones, 0 * ones, verbose=0)
        seen.append(round(float(model.get_weights()[0][0, 0]), 3) + 0.0)
    return seen


right = steps("mae")
regularized = steps(lambda y, predicted: 0 * predicted, keras.regularizers.L1(0.1))
print(keras.backend.backend(), "error 0 under mae:", right, "L1:", regularized)
END
seen=$(for backend in torch tensorflow jax; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/zero.py" 2>/dev/null
done
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -c "
import jax, jax.numpy as jnp
print(jax.__version__, 'gradient of abs at 0:', float(jax.grad(jnp.abs)(0.0)))")
echo "$seen"
[ "$seen" = "torch error 0 under mae: [0.0, 0.0, 0.0] L1: [0.0, 0.0, 0.0]
tensorflow error 0 under mae: [0.0, 0.0, 0.0] L1: [0.0, 0.0, 0.0]
jax error 0 under mae: [1.0, 0.0, 1.0] L1: [-0.1, 0.0, -0.1]
0.10.2 gradient of abs at 0: 1.0" ]
