"""What averaged gradients cost Keras 3 on torch with one GPU for each worker, beside DistributedDataParallel.

All ways train the same model on the same batches by `fit`, with the same train_step: alone, with DistributedOptimizer
(NCCL), with the same in buckets of 25 MB that begin in the backward pass, with the same by way of the host, and with
the model wrapped in torch's DistributedDataParallel. They take turns in one job. A step is the median over an epoch's
batches, without the first ones; what is printed are medians over the rounds of all workers, and ratios within each
round.

    python benchmarks/keras_gpu.py [--gpus 4] [--quick] [--out FOLDER]
    python benchmarks/keras_gpu.py --gpus 4 --hosts 2 --ways alone "averaged gradients" DDP

With --hosts the GPUs are divided among so many hosts, which are network namespaces of this machine and need root.
NCCL_HOSTID says to NCCL which GPUs are on one host, and it sends over sockets to others. Where the system has no
namespaces, --loopback starts the launchers side by side. With --rate the links of these hosts are limited, and with
--compression averaged gradients are compressed between them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import namespaces
import report

SCRIPT = Path(__file__).parent / "scripts" / "keras_gpu_train.py"
WAYS = ("alone", "averaged gradients", "in buckets of 25 MB", "by way of the host", "DDP")
MODELS = ("10 MB", "100 MB", "ResNet-50")
COUNTS = {"rounds": (7, 2), "batches": (80, 20)}  # with --quick the second
GOAL = 1.05
LIMIT_S = 900.0
PORT = 29471


def measure(options: argparse.Namespace) -> list[dict]:
    """Run the job; returns what each worker wrote."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        each, launchers = options.gpus // options.hosts, []
        hosts = []
        if options.hosts > 1 and not options.loopback:
            network = stack.enter_context(namespaces.Hosts(options.hosts))
            network.limit(options.rate)
            hosts = network.all
        Path(folder, "key").touch(0o600)
        Path(folder, "key").write_text(secrets.token_hex(32))
        words = [str(SCRIPT), folder, "--rounds", options.rounds, "--batches", options.batches, "--ways", *options.ways]
        words += ["--models", *options.models, *(["--profile", options.profile] if options.profile else [])]
        for number in range(options.hosts):
            devices = [f"cuda{i}" for i in range(number * each, (number + 1) * each)]
            begin = [sys.executable, "-m", "platoon_base", "launch", "-D", *devices, "--log-dir", f"{folder}/{number}"]
            if options.hosts > 1:
                endpoint = f"{hosts[0].address if hosts else '127.0.0.1'}:{PORT}"
                begin += ["--nnodes", options.hosts, "--node-rank", number, "--rdzv-endpoint", endpoint]
                begin += ["--hosts-compression", options.compression]
            inside = hosts[number].enter() if hosts else []
            launchers.append(start([*map(str, [*inside, *begin, *words])], folder, number, options))
            stack.callback(stop, launchers[-1])
        deadline = time.monotonic() + LIMIT_S
        statuses = [launcher.wait(max(0.1, deadline - time.monotonic())) for launcher in launchers]
        if any(statuses):
            logs = [*Path(folder).glob("output*.log"), *sorted(Path(folder).glob("*/rank*.log"))]
            text = "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in logs)
            raise SystemExit(f"{text}\nthe job FAILED with {statuses}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(options.gpus)]


def start(command: list[str], folder: str, number: int, options: argparse.Namespace) -> subprocess.Popen:
    """Start a launcher."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch", "PLATOON_KEY_FILE": f"{folder}/key"}
    if options.hosts > 1:
        env["NCCL_SOCKET_IFNAME"] = "lo" if options.loopback else "eth0"
        env["NCCL_HOSTID"] = f"host{number}"
    with Path(folder, f"output{number}.log").open("w") as output:
        return subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)


def stop(launcher: subprocess.Popen) -> None:
    """End a launcher, which then ends its workers."""
    if launcher.poll() is None:
        launcher.terminate()
        launcher.wait(30)


def summarize(workers: list[dict]) -> list[dict]:
    """Return a row for each model and way."""
    rows = []
    for model, first in workers[0]["models"].items():
        rounds = [each for worker in workers for each in worker["models"][model]["rounds"]]
        for way in first["rounds"][0]:
            rows.append(
                {
                    "model": model,
                    "way": way,
                    "step_ms": report.median([each[way] for each in rounds]),
                    "to_alone": report.median([each[way] / each["alone"] for each in rounds]),
                    "to_ddp": report.median([each[way] / each["DDP"] for each in rounds]),
                }
            )
    return rows


COLUMNS = {"model": "model", "way": "way", "step_ms": "step, ms", "to_alone": "x alone", "to_ddp": "x DDP"}


def main() -> None:
    """Measure, and print the table and the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2, help="all together, a worker each  [2]")
    parser.add_argument("--hosts", type=int, default=1, help="among which the GPUs are divided  [1]")
    parser.add_argument("--loopback", action="store_true", help="launchers side by side are the hosts")
    parser.add_argument("--rate", help="of the links between hosts, such as 1gbit  [unlimited]")
    parser.add_argument("--compression", default="none", help="of averaged gradients between hosts  [none]")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS, help="alone and DDP among them  [all]")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="[all]")
    parser.add_argument(
        "--profile", type=Path, help="folder for profiles of Python; the last round is one, not counted"
    )
    parser.add_argument("--rounds", type=int, help="of all ways, the first of which is not counted  [7]")
    parser.add_argument("--batches", type=int, help="of a fit  [80]")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved unless --out is given")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    options = parser.parse_args()
    for name, counts in COUNTS.items():
        setattr(options, name, getattr(options, name) or counts[options.quick])
    if options.gpus % options.hosts:
        raise SystemExit(f"got --gpus {options.gpus} --hosts {options.hosts}: give each host as many GPUs")
    if options.hosts > 1 and not options.loopback and namespaces.problem():
        raise SystemExit(f"{namespaces.problem()}; --loopback does without")
    workers = measure(options)
    rows = summarize(workers)
    versions = workers[0]["versions"]
    on = f"on {options.hosts} hosts, " if options.hosts > 1 else ""
    report.table(
        f"Keras {versions['keras']} on torch {versions['torch']}, {on}{len(workers)} x {versions['gpu']}; medians",
        list(COLUMNS.values()),
        [[row[key] for key in COLUMNS] for row in rows],
    )
    goals = [
        report.goal(f"averaged gradients, {row['model']}, x DDP", row["to_ddp"], GOAL, at_least=False)
        for row in rows
        if row["way"] == "averaged gradients"
    ]
    if options.out or not options.quick:
        asked = {key: value for key, value in vars(options).items() if key not in ("out", "profile")}
        results = {"options": asked, "results": rows, "goals": goals, "workers": workers}
        link = f"-{options.rate}-{options.compression}" if options.rate else ""
        name = f"keras-gpu-{options.hosts}-hosts{link}" if options.hosts > 1 else f"keras-gpu-{options.gpus}"
        report.save(name, results, options.out or report.FOLDER)


if __name__ == "__main__":
    main()
