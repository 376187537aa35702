"""How well-known networks scale: images per second on 1, 2, 4, 8 devices, the efficiency, and where a step's time goes.

Each line is a job of examples/zoo: a network, a rule (bsp: averaged gradients; easgd), so many workers, one for each
device. The efficiency is the images per second of N workers over N times those of one, which trains in a job too.
A worker's step is split into load, compute, communicate and wait, see docs/report.md. The rule ddp is not one of ours:
the same network in Keras on torch, trained by DistributedDataParallel. Results are written after each job: a run that
is ended keeps them; those on processors only with --out.

    python benchmarks/zoo.py --framework lasagne                       # on all CUDA devices
    python benchmarks/zoo.py --framework torch --devices cuda0 cuda0   # two workers on one device
    python benchmarks/zoo.py --framework jax --devices cpu cpu         # small variants of the networks
    python benchmarks/zoo.py --quick --models alexnet --rules bsp

`make bench-gpu` runs it for all three frameworks.
"""

import json
import sys
import tempfile
from pathlib import Path

import harness

from platoon_base.devices.discovery import cuda_devices

ZOO = harness.ROOT / "examples" / "zoo"
DDP = harness.ROOT / "benchmarks" / "scripts" / "zoo_ddp.py"
KERAS = ("resnet50", "vgg16", "vit")
MODELS = {"lasagne": ("alexnet", "googlenet", "vgg16", "resnet50"), "torch": KERAS, "jax": KERAS}
PARTS = ("load", "compute", "communicate", "wait")
NAMES = dict.fromkeys((*MODELS["lasagne"], *KERAS))
# Images of a step of one worker, their height, and what filters and units are multiplied by; on GPUs the mini-batches
# of the published table of Theano-MPI, where it has the network.
FULL = {name: (128, 227, 1.0) if name == "alexnet" else (32, 224, 1.0) for name in NAMES}
SMALL = {name: (8, 67 if name == "alexnet" else 32, 0.1) for name in NAMES}
QUICK = {name: (4, image, 0.05) for name, (_, image, _) in SMALL.items()}


def run(options, model, rule, devices):
    given = (options.batch, options.image, options.width)
    batch, image, width = (own or usual for own, usual in zip(given, options.sizes[model]))
    script = DDP if rule == "ddp" else ZOO / ("zoo_lasagne.py" if options.framework == "lasagne" else "zoo_keras.py")
    # JAX takes memory as it needs it, as workers may share a GPU.
    env = harness.FLOAT32 if options.framework == "lasagne" else {"KERAS_BACKEND": options.framework}
    with tempfile.TemporaryDirectory() as folder:
        words = {"model": model, "rule": "bsp" if rule == "ddp" else rule, "batch": batch, "image": image}
        words |= {"width": width, "steps": options.steps, "data": options.data, "summary": f"{folder}/result.json"}
        arguments = [word for name, value in words.items() for word in (f"--{name}", value)]
        how = {"devices": devices, "env": env, "path": [ZOO], "arguments": arguments}
        try:
            harness.job(script, limit_s=options.limit, **how)
        except SystemExit as exc:
            print(f"{exc}: {model}, {rule}, {len(devices)} workers", flush=True)
            return None
        return json.loads(Path(folder, "result.json").read_text())


def run_all(options):
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
                efficiency = single and result["images_per_s"] / (result["workers"] * single["images_per_s"])
                rows.append({**result, "devices": devices, "efficiency": efficiency})
                print(f"{model}, {rule}, {count} workers: {result['images_per_s']:.1f} images/s", flush=True)
                if options.out or not options.on_cpu:
                    about = {name: getattr(options, name) for name in ("framework", "steps", "data", "devices")}
                    name = f"zoo-{options.framework}{'-cpu' if options.on_cpu else ''}"
                    harness.save(name, {"options": about, "results": rows}, options)
    return rows


def settle(options):
    """Fill in what the command line leaves open; ends the program if it cannot be done."""
    options.devices = options.devices or cuda_devices().names or ["cpu", "cpu"]
    options.on_cpu = "cpu" in options.devices
    options.workers = options.workers or [2**power for power in range(len(options.devices).bit_length())]
    if not 1 <= min(options.workers) <= max(options.workers) <= len(options.devices):
        raise SystemExit(f"got --workers {options.workers} and {len(options.devices)} devices: each worker needs one")
    known = MODELS.get(options.framework) or sys.exit(f"got --framework {options.framework}: choose of {[*MODELS]}")
    options.models = options.models or known
    unknown = sorted(set(options.models) - set(known))
    if unknown:
        raise SystemExit(f"got --models {' '.join(unknown)} with --framework {options.framework}: it has {known}")
    if "ddp" in options.rules and options.framework != "torch":
        raise SystemExit(f"got --rules ddp with --framework {options.framework}: it is torch's; add --framework torch")
    options.steps = options.steps or (5 if options.quick else 20 if options.on_cpu else 100)
    options.sizes = QUICK if options.quick else SMALL if options.on_cpu else FULL


def measure():
    sizes = {"steps": int, "batch": int, "image": int, "width": float, "data": "synthetic", "limit": 1800.0}
    which = {"framework": "lasagne", "models": [], "rules": ["bsp", "easgd"], "devices": [], "workers": [int]}
    options = harness.options(__doc__, **which, **sizes)
    settle(options)
    rows, shown = run_all(options), []
    for row in rows:
        cells = {name: row[name] for name in ("model", "rule", "workers", "images_per_s", "efficiency", "step_ms")}
        cells["devices"] = len(set(row["devices"]) - {"cpu"}) or "cpu"
        shown.append({**cells, **{f"{part}, ms": row["parts_ms"][part] for part in PARTS}})
    what = "small variants on processors" if options.on_cpu else f"{options.data} images"
    harness.table(f"{options.framework}: {what}", shown)
    return int(len(rows) < len(options.models) * len(options.rules) * len(options.workers))


if __name__ == "__main__":
    harness.main(measure)
