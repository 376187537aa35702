"""How well-known networks scale: images per second on 1, 2, 4, 8 devices, the efficiency, and where a step's time goes.

Each line is a job of examples/zoo: a network, a rule (bsp: averaged gradients; easgd), so many workers, one for each
device. The efficiency is the images per second of N workers over N times those of one, which trains in a job too.
A worker's step is split into load, compute, communicate and wait, see docs/report.md. The rule ddp is not one of ours:
the same network in Keras on torch, trained by DistributedDataParallel. Results are written after each job: a run that
is ended keeps them.

    python benchmarks/zoo.py --framework lasagne                       # on all CUDA devices
    python benchmarks/zoo.py --framework torch --devices cuda0 cuda0   # two workers on one device
    python benchmarks/zoo.py --framework jax --devices cpu cpu         # small variants of the networks
    python benchmarks/zoo.py --quick --models alexnet --rules bsp

`make bench-gpu` runs it for all three frameworks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import report

from platoon_base.devices.discovery import cuda_devices

ZOO = Path(__file__).parents[1] / "examples" / "zoo"
FRAMEWORKS = ("lasagne", "torch", "jax")
MODELS = {
    "lasagne": ("alexnet", "googlenet", "vgg16", "resnet50"),
    "torch": ("resnet50", "vgg16", "vit"),
    "jax": ("resnet50", "vgg16", "vit"),
}
RULES = ("bsp", "easgd")
DDP = Path(__file__).parent / "scripts" / "zoo_ddp.py"
PARTS = ("load", "compute", "communicate", "wait")


class Size(NamedTuple):
    """What a job of one network trains on; ``batch`` is that of one worker."""

    batch: int
    image: int
    width: float = 1.0


# On GPUs the mini-batches of the published table of Theano-MPI, where it has the network.
FULL = {
    "alexnet": Size(128, 227),
    "googlenet": Size(32, 224),
    "vgg16": Size(32, 224),
    "resnet50": Size(32, 224),
    "vit": Size(32, 224),
}
SMALL = {name: Size(8, 67 if name == "alexnet" else 32, 0.1) for name in FULL}
QUICK = {name: Size(4, size.image, 0.05) for name, size in SMALL.items()}


def run(options: argparse.Namespace, model: str, rule: str, devices: list[str]) -> dict | None:
    """Run one job; returns its measurement, or None if it failed."""
    size = options.sizes[model]
    script = DDP if rule == "ddp" else ZOO / ("zoo_lasagne.py" if options.framework == "lasagne" else "zoo_keras.py")
    # One thread for each worker, as they share the cores; JAX takes memory as it needs it, as they may share a GPU.
    env = {"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ZOO.parents[1]), str(ZOO), os.environ.get("PYTHONPATH")]))
    if options.framework == "lasagne":
        env["THEANO_FLAGS"] = ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), "floatX=float32"]))
    else:
        env["KERAS_BACKEND"] = options.framework
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-D", *devices, "--log-dir", f"{folder}/logs"]
        command += [script, "--model", model, "--rule", "bsp" if rule == "ddp" else rule]
        command += ["--batch", size.batch, "--image", size.image, "--width", size.width]
        command += ["--steps", options.steps, "--data", options.data, "--summary", f"{folder}/result.json"]
        try:
            done = subprocess.run(
                [*map(str, command)], env=env, capture_output=True, text=True, timeout=options.limit, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"FAILED: {model}, {rule}, {len(devices)} workers: not within {options.limit} s", flush=True)
            return None
        if done.returncode:
            print(f"{done.stdout[-3000:]}{done.stderr[-3000:]}")
            print(f"FAILED: {model}, {rule}, {len(devices)} workers: status {done.returncode}", flush=True)
            return None
        return json.loads(Path(folder, "result.json").read_text())


def counts(number: int) -> list[int]:
    """Return the numbers of workers: 1, 2, 4, ... up to this number."""
    return [2**power for power in range(number.bit_length())]


def row_of(result: dict, devices: list[str], single: dict | None) -> dict:
    """Return a measurement with its devices and, if one worker was measured, the efficiency."""
    efficiency = single and result["images_per_s"] / (result["workers"] * single["images_per_s"])
    return {**result, "devices": devices, "efficiency": efficiency}


HEADINGS = ["network", "rule", "workers", "devices", "images/s", "efficiency", "step, ms", *(f"{p}, ms" for p in PARTS)]


def cells(row: dict) -> list:
    """Return a row of the table."""
    efficiency = "-" if row["efficiency"] is None else f"{row['efficiency']:.2f}"
    begin = [row["model"], row["rule"], row["workers"], len(set(row["devices"]) - {"cpu"}) or "cpu"]
    return [*begin, f"{row['images_per_s']:.1f}", efficiency, row["step_ms"], *(row["parts_ms"][p] for p in PARTS)]


def measure(options: argparse.Namespace) -> list[dict]:
    """Run all jobs; returns a row for each that ended well."""
    rows = []
    for model in options.models:
        for rule in options.rules:
            single = None
            for count in options.workers:
                devices = options.devices[:count]
                result = run(options, model, rule, devices)
                if result is None:
                    continue
                single = result if count == 1 else single
                rows.append(row_of(result, devices, single))
                print(f"{model}, {rule}, {count} workers: {result['images_per_s']:.1f} images/s", flush=True)
                save(options, rows)
    return rows


def save(options: argparse.Namespace, rows: list[dict]) -> None:
    """Write the results, unless they are those of a processor and no folder was named for them."""
    if options.out or not (options.quick or options.on_cpu):
        asked = {name: getattr(options, name) for name in ("framework", "steps", "data", "devices")}
        name = f"zoo-{options.framework}{'-cpu' if options.on_cpu else ''}"
        report.save(name, {"options": asked, "results": rows}, options.out or report.FOLDER)


def settle(options: argparse.Namespace) -> None:
    """Fill in what the command line leaves open; ends the program if it cannot be done."""
    options.devices = options.devices or cuda_devices().names or ["cpu", "cpu"]
    options.on_cpu = "cpu" in options.devices
    options.workers = options.workers or counts(len(options.devices))
    if not 1 <= min(options.workers) <= max(options.workers) <= len(options.devices):
        raise SystemExit(f"got --workers {options.workers} and {len(options.devices)} devices: each worker needs one")
    options.models = options.models or MODELS[options.framework]
    unknown = sorted(set(options.models) - set(MODELS[options.framework]))
    if unknown:
        known = ", ".join(MODELS[options.framework])
        raise SystemExit(f"got --models {' '.join(unknown)} with --framework {options.framework}: it has {known}")
    if "ddp" in options.rules and options.framework != "torch":
        raise SystemExit(f"got --rules ddp with --framework {options.framework}: it is torch's; add --framework torch")
    options.steps = options.steps or (5 if options.quick else 20 if options.on_cpu else 100)
    sizes = QUICK if options.quick else SMALL if options.on_cpu else FULL
    given = {name: getattr(options, name) for name in Size._fields if getattr(options, name)}
    options.sizes = {name: size._replace(**given) for name, size in sizes.items()}


def main() -> int:
    """Measure, print, save; returns 1 if a job failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=FRAMEWORKS, default="lasagne", help="torch, jax: Keras 3  [lasagne]")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="[all of the framework]")
    parser.add_argument("--rules", nargs="+", choices=(*RULES, "default", "ddp"), default=RULES)
    parser.add_argument(
        "--devices", nargs="+", help="a worker each, such as cuda0 cuda1; [CUDA's; without any, cpu cpu]"
    )
    parser.add_argument("--workers", nargs="+", type=int, help="a job for each number  [1 2 4 ... all devices]")
    parser.add_argument("--steps", type=int, help="of each worker that are measured  [100; on processors 20]")
    parser.add_argument("--batch", type=int, help="images of a step of one worker  [128 of AlexNet, else 32; small: 8]")
    parser.add_argument("--image", type=int, help="height and width  [224, AlexNet 227; small: 32, AlexNet 67]")
    parser.add_argument("--width", type=float, help="times filters and units  [1; small: 0.1]")
    parser.add_argument("--data", choices=("synthetic", "digits", "fashion"), default="synthetic")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which a job is given up  [1800]")
    parser.add_argument("--quick", action="store_true", help="smallest networks, few steps; saved only with --out")
    parser.add_argument("--out", type=Path, help="folder for zoo-*.json  [docs/benchmarks, of GPUs only]")
    options = parser.parse_args()
    settle(options)
    rows = measure(options)
    what = "small variants on processors" if options.on_cpu else "synthetic images" * (options.data == "synthetic")
    report.table(f"{options.framework}: {what or options.data}", HEADINGS, [cells(row) for row in rows])
    return int(len(rows) < len(options.models) * len(options.rules) * len(options.workers))


if __name__ == "__main__":
    sys.exit(main())
