#!/usr/bin/env bash
# Guess: jnp.from_dlpack(tensor) keeps the dtype, also float64 and int64 while x64 is off, as it takes over memory and
#   converts nothing; or it raises. The array shares the tensor's memory.
# Happens: float64 becomes float32 and int64 becomes int32, without a warning, and 2**40 + 5 becomes 5. These arrays are
#   copies, which stay as they were; those of float32 and int32 share, and follow what is written to the tensor.
# Why it matters: counts of rows and steps lose their high bits on the way from torch to JAX, and a buffer that
#   receives each average is seen by the JAX side or not, by its dtype.
# Versions: JAX 0.10.2, torch 2.13.0.
# Source: the last lines of from_dlpack in jax/_src/dlpack.py (canonicalize_dtype).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 torch==2.13.0 numpy
cat > "$folder/take.py" <<'END'
import jax
import jax.numpy as jnp
import torch

print(jax.__version__, torch.__version__.partition("+")[0])
for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
    tensor = torch.zeros(1024, dtype=dtype)
    array = jax.block_until_ready(jnp.from_dlpack(tensor))
    tensor += 7
    print(str(dtype)[6:], "becomes", array.dtype, "and sees a later write:", int(array[0]) == 7)
print(2**40 + 5, "becomes", int(jnp.from_dlpack(torch.tensor([2**40 + 5]))[0]))
END
seen=$(JAX_PLATFORMS=cpu CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" -W error "$folder/take.py")
echo "$seen"
[ "$seen" = "0.10.2 2.13.0
float32 becomes float32 and sees a later write: True
float64 becomes float32 and sees a later write: False
int32 becomes int32 and sees a later write: True
int64 becomes int32 and sees a later write: False
1099511627781 becomes 5" ]
