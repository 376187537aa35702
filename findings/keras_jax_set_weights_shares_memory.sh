#!/usr/bin/env bash
# Guess: model.set_weights(arrays) copies the arrays on every back end of Keras.
# Happens: on JAX on the CPU the weights share the memory of arrays that begin at a multiple of 64 bytes: writing to the
#   arrays changes the model. A new Variable copies; torch and TensorFlow copy. model.get_weights() does not share.
# Why it matters: a worker that receives each average into the same buffer and sets it as the weights has a model that
#   changes while the next average arrives, or does not, by the address of the buffer.
# Versions: Keras 3.15.1, JAX 0.10.2, NumPy 2.4.6.
# Source: keras/src/backend/jax/core.py (convert_to_tensor); jax_device_put_shares_numpy_memory.sh here.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check keras==3.15.1 jax==0.10.2 numpy==2.4.6
cat > "$folder/share.py" <<'END'
import keras
import numpy as np


def zeros_at(offset):
    memory = np.zeros(4 * 256 + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    return memory[begin : begin + 4 * 256].view(np.float32).reshape(16, 16)


print(keras.__version__, keras.backend.backend())
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, use_bias=False)])
for offset in (0, 16):
    array = zeros_at(offset)
    model.set_weights([array])
    array[:] = 7
    print("at 64 bytes" if offset == 0 else "at 64 + 16", float(model.get_weights()[0].max()))
array = zeros_at(0)
variable = keras.Variable(array)
array[:] = 7
print("new Variable", float(keras.ops.max(variable)))
END
seen=$(KERAS_BACKEND=jax JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/share.py")
echo "$seen"
[ "$seen" = "3.15.1 jax
at 64 bytes 7.0
at 64 + 16 0.0
new Variable 0.0" ]
