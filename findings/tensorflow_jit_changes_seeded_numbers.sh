#!/usr/bin/env bash
# Guess: a seeded stateless random operation gives the same numbers with and without jit_compile: both are Philox.
# Happens: they differ, and so do the masks of a seeded Dropout layer.
# Why it matters: a worker whose step is compiled by XLA and one whose step is not draw other masks from equal seeds;
#   switching jit_compile between a run and its resumption changes all masks.
# Versions: tensorflow-cpu 2.21.0, Keras 3.15.1.
# Source: documentation of tf.random.stateless_uniform (alg="auto_select": the algorithm depends on the device).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check keras==3.15.1 tensorflow-cpu==2.21.0
cat > "$folder/draw.py" <<'END'
import keras
import tensorflow as tf


def drawn(compiled):
    numbers = tf.function(lambda: keras.random.uniform((1000,), seed=7), jit_compile=compiled)()
    layer = keras.layers.Dropout(0.5, seed=1)
    mask = tf.function(lambda: layer(tf.ones((1, 1000)), training=True), jit_compile=compiled)()
    return numbers.numpy(), mask.numpy()


(plain, mask), (compiled, compiled_mask) = drawn(False), drawn(True)
print(tf.__version__, keras.__version__, "equal numbers:", (plain == compiled).sum(), "of 1000")
print("equal masks:", bool((mask == compiled_mask).all()))
END
seen=$(KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/draw.py" 2>/dev/null)
echo "$seen"
[ "$seen" = "2.21.0 3.15.1 equal numbers: 0 of 1000
equal masks: False" ]
