#!/usr/bin/env bash
# Guess: safetensors.numpy writes a transposed or sliced array as its values, or refuses it, as safetensors.torch does.
# Happens: it writes the memory from the array's beginning on, without an error or a warning: a transposed matrix comes
#   back with its values mixed, every second number as the first half of all.
# Why it matters: parameters that are views (W.T, or the rows of one of N workers, table[rank::N]) are damaged in a file
#   that loads everywhere. np.ascontiguousarray before saving helps.
# Versions: safetensors 0.8.0, NumPy 2.4.6.
# Source: safetensors/numpy.py (_flatten passes the array's address, not its strides).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
cat > "$folder/views.py" <<'END'
import numpy as np
import safetensors
from safetensors.numpy import load, save

arrays = {"transposed": np.arange(6.0).reshape(2, 3).T, "each second": np.arange(6.0)[::2]}
loaded = load(save(arrays))
print(safetensors.__version__, np.__version__)
for name, array in arrays.items():
    print(name, array.ravel().tolist(), "loaded as", loaded[name].ravel().tolist())
END
seen=$("$folder/venv/bin/python" -W error "$folder/views.py")
echo "$seen"
[ "$seen" = "0.8.0 2.4.6
transposed [0.0, 3.0, 1.0, 4.0, 2.0, 5.0] loaded as [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
each second [0.0, 2.0, 4.0] loaded as [0.0, 1.0, 2.0]" ]
