#!/usr/bin/env bash
# Guess: ScheduleFreeAdamW makes the same steps on all back ends, weights the average as the package schedulefree does, and
#   leaves the averaged weights in the model after fit.
# Happens: with a gradient of 1, a rate of 0.1 and beta_1 = 0.9 the weight is -0.1, -0.155, -0.21 on JAX, as the paper
#   has it, and -0.1, -0.15, -0.2 on torch: "momentum_old" is the variable's own memory there, which the next line
#   changes in place. fit leaves y in the model, not the average x.
# Why it matters: workers on different back ends, or a run that moves from one to the other, follow different rules with
#   equal settings; and N workers must be compared with one process of the same back end.
# Versions: Keras 3.15.1, JAX 0.10.2, torch 2.13.0. On TensorFlow 2.21.0 the result is that of torch for this case.
# Source: update_step in keras/src/optimizers/schedule_free_adamw.py; https://arxiv.org/abs/2405.15682.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check keras==3.15.1 jax==0.10.2 torch==2.13.0
cat > "$folder/step.py" <<'END'
import keras
import numpy as np

optimizer = keras.optimizers.ScheduleFreeAdamW(learning_rate=0.1, beta_1=0.9, weight_decay=0.0)
layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
model = keras.Sequential([keras.Input((1,)), layer])
model.compile(optimizer, lambda y, predicted: predicted)
seen = []
for _ in range(3):
    model.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0)
    seen.append(round(float(model.get_weights()[0][0, 0]), 4))
print(keras.backend.backend(), seen)
END
seen=$(for backend in torch jax; do
    KERAS_BACKEND=$backend JAX_PLATFORMS=cpu CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/step.py" 2>/dev/null
done)
echo "$seen"
[ "$seen" = "torch [-0.1, -0.15, -0.2]
jax [-0.1, -0.155, -0.21]" ]
