#!/usr/bin/env bash
# Guess: jnp.asarray may share the memory of a NumPy array on the CPU, with a dtype or without; a compiled function copies
#   its arguments while it is called; device_put(..., may_alias=False) copies, as its documentation says.
# Happens: jnp.asarray(a) copies, and jnp.asarray(a, dtype=a.dtype) and device_put(a) share the memory of arrays that begin
#   at a multiple of 64 bytes, the latter also with may_alias=False. A compiled function that was called with such an
#   array sees what is written to it after the call returned. jnp.array copies always.
# Why it matters: a buffer that receives the next average or the next batch, above all one in shared memory, which begins
#   at a page, changes parameters and batches that were "put on the device" before. It shows at some addresses only.
# Versions: JAX 0.10.2, NumPy 2.4.6.
# Source: documentation of jax.device_put (may_alias); zero-copy host buffers of XLA's CPU client.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 numpy==2.4.6
cat > "$folder/share.py" <<'END'
import jax
import jax.numpy as jnp
import numpy as np


def zeros_at(offset, count=1 << 20):
    memory = np.zeros(4 * count + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    return memory[begin : begin + 4 * count].view(np.float32)


def after_write(put, offset):
    array = zeros_at(offset)
    made = jax.block_until_ready(put(array))
    array[:] = 7
    return float(made[0])


ways = {
    "device_put": jax.device_put,
    "device_put, may_alias=False": lambda a: jax.device_put(a, may_alias=False),
    "asarray": jnp.asarray,
    "asarray, dtype": lambda a: jnp.asarray(a, dtype=np.float32),
    "array": jnp.array,
}
print(jax.__version__)
for name, put in ways.items():
    print(f"{name}: {after_write(put, 0)} at 64 bytes, {after_write(put, 16)} at 64 + 16")
first = jax.jit(lambda x: x[0] + 0 * jnp.sin(x).sum())
first(zeros_at(0))
seen = []
for _ in range(10):
    array = zeros_at(0)
    result = first(array)
    array[:] = 7
    seen.append(float(result))
print("a compiled function saw a later write:", 7.0 in seen)
END
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/share.py")
echo "$seen"
[ "$seen" = "0.10.2
device_put: 7.0 at 64 bytes, 0.0 at 64 + 16
device_put, may_alias=False: 7.0 at 64 bytes, 0.0 at 64 + 16
asarray: 0.0 at 64 bytes, 0.0 at 64 + 16
asarray, dtype: 7.0 at 64 bytes, 0.0 at 64 + 16
array: 0.0 at 64 bytes, 0.0 at 64 + 16
a compiled function saw a later write: True" ]
