#!/usr/bin/env bash
# Guess: torchrun starts two processes, so Accelerator() makes one group of them: over NCCL with GPUs, over gloo without.
# Happens: on a host without a GPU each process is alone: num_processes is 1, both are main processes, both train on all
#   rows, and gather() returns the process's own value, without an error or a warning. Only Accelerator(cpu=True), or
#   ACCELERATE_USE_CPU=1, makes a group over gloo.
# Why it matters: a job that lands on a host whose GPUs are hidden (a wrong CUDA_VISIBLE_DEVICES, a driver that fails)
#   becomes N equal trainings which all write the same files, and their printed losses look right.
# Versions: accelerate 1.15.0, torch 2.13.0.
# Source: _prepare_backend in accelerate/state.py: without cpu=True a LOCAL_RANK leads to a back end of devices alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check accelerate==1.15.0 torch==2.13.0 numpy
cat > "$folder/train.py" <<'END'
import os
import sys

import accelerate
import torch
from torch.utils.data import DataLoader

accelerator = accelerate.Accelerator(cpu=True) if "cpu=True" in sys.argv else accelerate.Accelerator()
loader = accelerator.prepare(DataLoader(torch.arange(8), batch_size=2))
rows = [batch.tolist() for batch in loader]
value = torch.tensor([1.0 + int(os.environ["RANK"])])
gathered = accelerator.gather(value).tolist()
with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w") as file:
    print("processes", accelerator.num_processes, "main", accelerator.is_main_process, rows, gathered, file=file)
END
run() {
    (cd "$folder" && CUDA_VISIBLE_DEVICES= HF_HOME="$folder" OMP_NUM_THREADS=1 venv/bin/torchrun --standalone --nproc-per-node 2 train.py "$@" >log 2>&1) ||
        { cat "$folder/log" >&2; return 1; }
    cat "$folder/$1.0" "$folder/$1.1"
}
"$folder/venv/bin/python" -c "import accelerate, torch; print(accelerate.__version__, torch.__version__.partition('+')[0])"
seen=$(run default; run gloo cpu=True)
echo "$seen"
[ "$seen" = "processes 1 main True [[0, 1], [2, 3], [4, 5], [6, 7]] [1.0]
processes 1 main True [[0, 1], [2, 3], [4, 5], [6, 7]] [2.0]
processes 2 main True [[0, 1], [4, 5]] [1.0, 2.0]
processes 2 main False [[2, 3], [6, 7]] [1.0, 2.0]" ]
