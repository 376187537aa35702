#!/usr/bin/env bash
# Guess: a maximum over ranks is NaN where one rank has a NaN, or at least treats each part of the tensor by its own
#   order of ranks.
# Happens: with two ranks the NaN of rank 0 arrives everywhere and that of rank 1 nowhere: both get rank 0's number.
# Why it matters: the maximum of losses or gradient norms over workers is how a NaN on one of them is looked for.
# Versions: torch 2.14.1, gloo, two processes on the CPU.
# Source: gloo/math.h (max by comparison of operands); documentation of torch.distributed.ReduceOp says nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.14.1 numpy
cat > "$folder/maximum.py" <<'END'
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    counts = []
    for holder in (0, 1):
        values = torch.full((17,), float("nan") if rank == holder else 1.0)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        counts.append(int(values.isnan().sum()))
    found = [None, None]
    dist.all_gather_object(found, counts)
    if rank == 0:
        print(torch.__version__.partition("+")[0], "NaN of 17, held by rank 0 and by rank 1:", found)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(os.path.dirname(os.path.abspath(__file__)),), nprocs=2)
END
seen=$(CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/maximum.py" 2>/dev/null)
echo "$seen"
[ "$seen" = "2.14.1 NaN of 17, held by rank 0 and by rank 1: [[17, 0], [17, 0]]" ]
