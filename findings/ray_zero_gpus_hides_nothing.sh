#!/usr/bin/env bash
# Guess: a Ray task with num_gpus=0 sees no GPU: Ray sets CUDA_VISIBLE_DEVICES to an empty text for it.
# Happens: Ray 2.60 leaves the variable as the driver had it, so such a task may open a context on every GPU. The number
#   of threads does follow num_cpus: OMP_NUM_THREADS is 1 for 0 and 0.5 CPUs and 2 for 2.
# Why it matters: an evaluator or a data task beside the workers takes memory on the workers' first GPU, some 600 MB for
#   torch, and its random or compiled state lives on a device that nobody gave it.
# Versions: Ray 2.60.0.
# Source: ray/_private/accelerators (RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO), Ray's page on accelerators.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check ray==2.60.0
cat > "$folder/tasks.py" <<'END'
import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
os.environ.pop("OMP_NUM_THREADS", None)
import ray

ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)


def look():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OMP_NUM_THREADS")


tasks = {cpus: ray.remote(num_gpus=0, num_cpus=cpus)(look).remote() for cpus in (0, 0.5, 2)}
print(ray.__version__, {cpus: ray.get(task) for cpus, task in tasks.items()})
END
seen=$("$folder/venv/bin/python" "$folder/tasks.py" 2>"$folder/log") || { cat "$folder/log"; exit 1; }
echo "$seen"
[ "$seen" = "2.60.0 {0: ('0,1', '1'), 0.5: ('0,1', '1'), 2: ('0,1', '2')}" ]
