"""How soon two hosts with a slow link between them reach a loss, by averaged gradients and by rounds. Needs root.

    python benchmarks/hosts_target.py [--methods ...] [--links ...] [--seeds 1] [--out FOLDER]

A perceptron with 1.9 million weights (7.5 MB) on Fashion-MNIST, Adam, mini-batches of 32 for each worker, one worker
and one core for each host; hosts are network namespaces of this machine, whose links are limited by a token bucket.
Each worker keeps its weights every 20 steps, or the center where its rule is asynchronous, and computes their loss on
2,000 rows of the validation set after the training, so that no evaluation gives an exchange time. The time to a target
is that of the first of these whose loss is below it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import namespaces
import report
from hosts_compression import LINKS, run

SCRIPT = Path(__file__).parent / "scripts" / "hosts_target_worker.py"
# What is averaged or the rule, and the codec.
METHODS = {
    "averaged gradients": ("gradients", "none"),
    "averaged gradients, int8": ("gradients", "int8"),
    "averaged gradients, int4": ("gradients", "int4"),
    "LocalSGD": ("LocalSGD()", "none"),
    "LocalSGD, int8": ("LocalSGD()", "int8"),
    "LocalSGD, int4": ("LocalSGD()", "int4"),
    "AveragedEASGD, int8": ("AveragedEASGD()", "int8"),
}
ONE = "one worker"
STEPS, EVERY, RATE, LONGEST_S = 600, 20, 0.0005, 120
TARGETS = (0.48, 0.44, 0.42)


def measured(name: str, link: str, seed: int, steps: int, hosts: list[namespaces.Host]) -> dict:
    """Train once; returns the seconds and steps to each target, None where it was not reached."""
    method, codec = METHODS.get(name, ("alone", "none"))
    words = [method, steps, EVERY, RATE, LONGEST_S, seed]
    workers = run(codec, words, hosts, script=SCRIPT)
    points = list(zip(*(worker["points"] for worker in workers)))
    curve = [(max(s for _, s, _ in each), each[0][0], sum(loss for *_, loss in each) / len(each)) for each in points]
    reached = {target: next(((s, step) for s, step, loss in curve if loss <= target), None) for target in TARGETS}
    row = {"method": name, "link": link, "seed": seed, "reached": reached, "curve": curve,
           "steps_per_s": curve[-1][1] / curve[-1][0]}  # fmt: skip
    print(f"{link}, {name}, seed {seed}: {reached}, {row['steps_per_s']:.3g} steps/s, last {curve[-1]}", flush=True)
    return row


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--links", nargs="+", default=[*LINKS], choices=[*LINKS])
    parser.add_argument("--steps", type=int, default=STEPS, help="of each worker; one alone makes twice as many  [600]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    options = parser.parse_args()
    problem = namespaces.problem()
    if problem:
        print(f"skipped: {problem}")
        return
    with namespaces.Hosts(2) as hosts:
        rows = [measured(ONE, "", seed, 2 * options.steps, hosts.all[:1]) for seed in options.seeds]
    for link in options.links:
        rate, delay_ms = LINKS[link]
        with namespaces.Hosts(2, delay_ms / 4) as hosts:  # a frame passes two wires on its way
            hosts.limit(rate)
            runs = [(name, link, seed, options.steps) for name in options.methods for seed in options.seeds]
            rows += [measured(*each, hosts.all) for each in runs]
            report.save("hosts_target", {"targets": TARGETS, "results": rows}, options.out)
    seconds = {target: [row["reached"][target] for row in rows] for target in TARGETS}
    report.table(
        "Seconds (and steps) to a validation loss",
        ["link", "method", "steps/s", *map(str, TARGETS)],
        [[row["link"], row["method"], row["steps_per_s"], *(
            "-" if seconds[target][i] is None else f"{seconds[target][i][0]:.1f} ({seconds[target][i][1]})"
            for target in TARGETS)] for i, row in enumerate(rows)],
    )  # fmt: skip


if __name__ == "__main__":
    main()
