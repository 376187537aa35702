"""How soon workers on two hosts, whose centers couriers bring together, learn what as many on one host learn.

    python benchmarks/hosts_learning.py [--seeds 1 2 3 4 5] [--methods defaults easgd-10] [--out FOLDER]
    python benchmarks/hosts_learning.py --task fashion-mnist --rate 0.001 --epochs 14 --methods defaults --seeds 1 2 3

Handwritten digits or Fashion-MNIST, a perceptron in Lasagne (tasks of learning.py). Launchers on this machine are the
hosts. Each mini-batch takes 20 ms longer than it computes, as one of a larger model would, and four workers then need
less than two cores. So an exchange each 0.2 s is one in about ten mini-batches, each second one in fifty. Steps are
those of a worker. The accuracy after each epoch is that on all validation rows, of which each worker takes its part, by
its own parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import report

SCRIPT = Path(__file__).parent / "scripts" / "learning_train_lasagne.py"
TARGETS_OF = {"digits": (0.93, 0.95, 0.96), "fashion-mnist": (0.86, 0.87, 0.88)}
NEVER = 86400.0
# Workers on each host, and the seconds from one exchange between hosts to the next.
ARMS = {
    "1 host x 1": ([1], 0.0),
    "1 host x 4": ([4], 0.0),
    "2 hosts x 2, every 0.2 s": ([2, 2], 0.2),
    "2 hosts x 2, every 1 s": ([2, 2], 1.0),
    "2 hosts x 2, never": ([2, 2], NEVER),
    "4 hosts x 1, every 0.2 s": ([1, 1, 1, 1], 0.2),
    "4 hosts x 1, never": ([1, 1, 1, 1], NEVER),
}
GOAL = 1.2  # of the steps that as many workers on one host take
LIMIT_S = 200


def run(arm: str, method: str, seed: int, options: argparse.Namespace) -> dict:
    """Train once; returns what rank 0 wrote."""
    workers, every_s = ARMS[arm]
    method = "plain" if sum(workers) == 1 else method
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        Path(folder, "key").touch(0o600)
        Path(folder, "key").write_text(secrets.token_hex(32))
        script = [SCRIPT, f"{folder}/result.json", "--task", options.task, "--method", method, "--rate", options.rate]
        script += ["--seed", seed, "--epochs", options.epochs, "--pause-ms", options.pause_ms]
        environment = {
            **os.environ, "PLATOON_HOSTS_EVERY_S": str(every_s), "PLATOON_KEY_FILE": f"{folder}/key",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        launchers = []
        for host, count in enumerate(workers):
            words = ["--nnodes", len(workers), "--node-rank", host, "--rdzv-endpoint", endpoint]
            words = [*(words if len(workers) > 1 else []), "-n", count, "-D", "cpu", "--seed", seed]
            command = [sys.executable, "-m", "platoon_base", "launch", *words, "--log-dir", f"{folder}/{host}", *script]
            launchers.append(subprocess.Popen([*map(str, command)], env=environment, stdout=subprocess.DEVNULL))
        try:
            statuses = [launcher.wait(LIMIT_S) for launcher in launchers]
        finally:
            for launcher in launchers:
                launcher.terminate()
        if any(statuses):
            sys.exit(f"{arm}, {method}, seed {seed} FAILED")
        found = json.loads(Path(folder, "result.json").read_text())
    steps = {str(target): next((step for step, _, value in found["curve"] if value >= target), None)
             for target in TARGETS_OF[options.task]}  # fmt: skip
    print(f"{arm}, {method}, seed {seed}: {steps}, best {max(value for _, _, value in found['curve']):.4f}", flush=True)
    best = max(value for _, _, value in found["curve"])
    return {"arm": arm, "method": method, "seed": seed, "steps": steps, "best": best}


def median_steps(runs: list[dict], arm: str, method: str, target: float) -> tuple[float, str]:
    """Return the median of the steps to a target, infinite where a run never came, and a text with the range."""
    method = "plain" if sum(ARMS[arm][0]) == 1 else method
    found = sorted(
        each["steps"][str(target)] or float("inf") for each in runs if (each["arm"], each["method"]) == (arm, method)
    )
    middle = found[len(found) // 2]
    return middle, f"{middle:g} ({found[0]:g} to {found[-1]:g})"


def main() -> None:
    """Train, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--methods", nargs="+", default=["defaults", "easgd-10"])
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS])
    parser.add_argument("--rate", type=float, default=0.002, help="learning rate of Adam  [0.002]")
    parser.add_argument("--task", choices=[*TARGETS_OF], default="digits", help="of learning.py  [digits]")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--pause-ms", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=2, help="at the same time  [2]")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    options = parser.parse_args()
    wanted = dict.fromkeys(
        (arm, "plain" if sum(ARMS[arm][0]) == 1 else method, seed)
        for method in options.methods for arm in options.arms for seed in options.seeds
    )  # fmt: skip
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda key: run(*key, options), wanted))
    targets = TARGETS_OF[options.task]
    rows, goals = [], []
    for method in options.methods:
        for arm in options.arms:
            rows.append([method, arm, *(median_steps(runs, arm, method, target)[1] for target in targets)])
        if {"1 host x 4", "2 hosts x 2, every 0.2 s"} <= set(options.arms):
            one, two = (median_steps(runs, arm, method, targets[-1])[0] for arm in list(ARMS)[1:3])
            goals.append(
                report.goal(f"{method}, steps to {targets[-1]} over those of one host", two / one, GOAL, False)
            )
    report.table("Steps of a worker to an accuracy; medians (ranges)", ["method", "", *map(str, targets)], rows)
    about = {"task": options.task, "rate": options.rate, "epochs": options.epochs, "pause_ms": options.pause_ms}
    name = "hosts_learning" if options.task == "digits" else f"hosts_learning-{options.task}"
    report.save(name, {**about, "runs": runs, "goals": goals}, options.out)


if __name__ == "__main__":
    main()
