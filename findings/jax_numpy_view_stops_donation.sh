#!/usr/bin/env bash
# Guess: a donated argument is deleted by the call, also if a NumPy view of it lives, which keeps its values.
# Happens: on the CPU JAX does not donate while np.asarray(x) or jax.device_get(x) lives: x stays alive and the result is
#   new memory, without a warning. A copy (np.array(x)) does not matter, and neither does a view that is gone.
# Why it matters: a worker that keeps views of its parameters to average them holds them twice in memory in each step, and
#   code that takes x.is_deleted() for "the step has run" is wrong.
# Versions: JAX 0.10.2, NumPy 2.4.6.
# Source: external references to buffers in XLA's CPU client; JAX's page on buffer donation.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 numpy==2.4.6
cat > "$folder/donate.py" <<'END'
import jax
import jax.numpy as jnp
import numpy as np

step = jax.jit(lambda x: x + 1, donate_argnums=0)
reads = {"nothing": lambda x: None, "asarray": np.asarray, "device_get": jax.device_get, "array": np.array}
print(jax.__version__)
for name, read in reads.items():
    x = jax.block_until_ready(jnp.zeros(1 << 20))
    place = x.unsafe_buffer_pointer()
    kept = read(x)
    result = jax.block_until_ready(step(x))
    print(name, "deleted:", x.is_deleted(), "in place:", result.unsafe_buffer_pointer() == place)
END
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W error "$folder/donate.py")
echo "$seen"
[ "$seen" = "0.10.2
nothing deleted: True in place: True
asarray deleted: False in place: False
device_get deleted: False in place: False
array deleted: True in place: True" ]
