#!/usr/bin/env bash
# Guess: on the CPU, dropout takes one seed from torch's generator whatever the number of elements, so workers with
#   batches of unequal length keep generators in step.
# Happens: each element takes numbers from the generator: after dropout on 31 and on 32 rows the next draws differ. On a
#   CUDA device they are equal up to some ten thousand elements, since there the generator moves by launches (seen on
#   one H200 with torch 2.11.0: equal after 31, 32 and 1,000 rows of 16, others after 100,000).
# Why it matters: after one uneven batch the workers' equal seeds mean nothing on the CPU, and still do on a GPU: a
#   script that relies on equal draws (a shared shuffle, shared negative samples) breaks on one of them only.
# Versions: torch 2.13.0.
# Source: aten/src/ATen/native/Dropout.cpp and DistributionTemplates.h of torch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy
cat > "$folder/draw.py" <<'END'
import torch

draws = {}
for rows in (31, 32, 1000):
    torch.manual_seed(0)
    torch.nn.functional.dropout(torch.ones(rows, 16), 0.5)
    draws[rows] = torch.rand(2).tolist()
print(torch.__version__.partition("+")[0], "different next draws:", len(set(map(tuple, draws.values()))), "of", len(draws))
END
seen=$(CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/draw.py")
echo "$seen"
[ "$seen" = "2.13.0 different next draws: 3 of 3" ]
