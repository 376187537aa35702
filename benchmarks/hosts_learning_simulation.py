"""What a rule's equations learn on several hosts whose centers are averaged: no process, no network, no shared memory.

    python benchmarks/hosts_learning_simulation.py [--task fashion-mnist] [--rate 0.002] [--passes 16] [--seeds 1 2]
        [--hosts 1x4 2x2 2x4] [--every 10 50 200] [--out FILE]

It needs torch, and Fashion-MNIST (`make data`) for its tasks. Networks, data and the equations of a host are those of
learning_simulation.py. 2x4 are two hosts with four workers each. Each so many steps of a worker all hosts copy their
centers; a few steps later each adds to its center, to its workers and to what these remember of the center the
difference between the mean of the copies and its own copy. Moments of optimizers stay on their host. What is validated
is the mean of the hosts' averages of their centers, and of their centers where the rule has no average.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import report
import torch
from learning_report import first_reach
from learning_simulation import Models, Tensors
from scripts.learning_tasks import DataMissing
from scripts.simulated_methods import Setting
from scripts.simulated_networks import NETWORKS, Simulated

DELAY = 2  # steps for which a copy is under way


class Place(NamedTuple):
    """Hosts, workers of each, and the steps from one exchange between hosts to the next; 0 for one host."""

    hosts: int
    workers: int
    every: int

    def __str__(self) -> str:
        return f"{self.hosts} x {self.workers}" + (f", every {self.every} steps" if self.every else "")


def settings(place: Place) -> dict[str, Setting]:
    """Return the defaults for every mini-batch and for longer periods, as each host of a job has them."""
    n, size = place.workers, place.workers * place.hosts
    reckoned = max(2, n)  # by the rules
    steps = {"alpha": 0.9 / reckoned, "pull": 0.5, "factor": 2 * size**0.5}
    momentum = {"alpha": 0.9 / reckoned, "mu": 0.9, "gain": 1.35 * reckoned**0.5}
    return {
        "AveragedEASGD": Setting("AveragedEASGD", n, steps, 1, moments="pull"),
        "CenterMomentum": Setting("CenterMomentum", n, momentum, 10),
    }


class Hosts(Models):
    """The workers of all hosts, for all seeds: a host is a model of those that `Models` trains at once."""

    def __init__(self, place: Place, row: Setting, seeds: list[int], rate: float, network: Simulated) -> None:
        super().__init__([row] * place.hosts, seeds, rate, "cpu", network)
        self.place = place
        self.copies: tuple[int, torch.Tensor] | None = None

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Make one step; then let what other hosts have learned come in, and copy the centers."""
        super().step(x, y)
        if self.copies is not None and self.ticks >= self.copies[0]:
            copies = self.copies[1]
            moved = self.over_hosts(copies).repeat(self.place.hosts, 1) - copies
            self.c += moved
            for values in (self.x, *(value for name, value in self.own.items() if name == "x_old")):
                values += moved[:, None]
            self.copies = None
        if self.place.every and self.ticks % self.place.every == 0:
            self.copies = self.ticks + DELAY, self.c.clone()

    def over_hosts(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean over the hosts, one row for each seed."""
        return values.unflatten(0, (self.place.hosts, -1)).mean(0)


def simulate(place: Place, row: Setting, options: argparse.Namespace, network: Simulated, data: Tensors) -> list[list]:
    """Return for each seed what was validated, as (steps of a worker, 0.0, value)."""
    x, y, x_valid, y_valid = data
    n, size, seeds = place.hosts * place.workers, network.task.batch_size, options.seeds
    models, per_pass = Hosts(place, row, seeds, options.rate, network), len(x) // n // size
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    curves: list[list] = [[] for _ in seeds]
    for t in range(round(per_pass * options.passes)):
        if t % per_pass == 0:
            orders = torch.stack([torch.rand(n, len(x) // n, generator=each).argsort(1) for each in generators])
            orders = orders * n + torch.arange(n)[:, None]
        batch = orders[:, :, t % per_pass * size :][:, :, :size]
        batch = batch.unflatten(1, (place.hosts, -1)).transpose(0, 1).flatten(0, 1)  # (hosts x seeds, workers, rows)
        models.step(x[batch], y[batch])
        if (t + 1) % max(1, per_pass // options.validations) == 0:
            validated = models.average if row.method == "AveragedEASGD" else models.c
            for curve, value in zip(curves, network.validate(models.over_hosts(validated), x_valid, y_valid)):
                curve.append((t + 1, 0.0, value))
    return curves


def steps_to(target: float, curves: list[list], lower: bool) -> str:
    """Return the steps of each seed to a target."""
    reached = [first_reach(curve, target, lower) for curve in curves]
    return ", ".join("never" if at is None else f"{at['steps']:.0f}" for at in reached)


def main(options: argparse.Namespace) -> int:
    network = NETWORKS[options.task]()
    task = network.task
    try:
        data = network.data("cpu")
    except DataMissing as exc:
        print(exc)
        return 1
    sizes = [tuple(map(int, text.split("x"))) for text in options.hosts]
    places = [Place(h, n, every) for h, n in sizes for every in (options.every if h > 1 else [0])]
    lines, runs = [], []
    for place in places:
        for name, row in settings(place).items():
            curves = simulate(place, row, options, network, data)
            best = min if task.lower else max
            bests = [best(value for *_, value in curve) for curve in curves]
            cells = [steps_to(target, curves, task.lower) for target in task.targets]
            lines.append([str(place), name, *cells, ", ".join(f"{value:.4f}" for value in bests)])
            print("; ".join(lines[-1]), flush=True)
            runs.append({"place": place._asdict(), "rule": name, "curves": curves})
            if options.out:
                about = {"task": options.task, "rate": options.rate, "seeds": options.seeds, "passes": options.passes}
                options.out.write_text(json.dumps({**about, "torch": torch.__version__, "runs": runs}))
    title = f"{options.task}, Adam {options.rate:g}, {options.passes:g} passes: steps of a worker, for each seed"
    report.table(title, ["hosts x workers", "rule", *(f"to {t:g}" for t in task.targets), "best"], lines, 160)
    return 0


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=NETWORKS, default="fashion-mnist", help="  [fashion-mnist]")
    parser.add_argument("--rate", type=float, default=0.002, help="learning rate  [0.002]")
    parser.add_argument("--passes", type=float, default=16.0, help="over the data, all workers together  [16]")
    parser.add_argument("--validations", type=int, default=4, help="in each pass  [4]")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="  [1 2]")
    parser.add_argument("--hosts", nargs="+", default=["1x4", "2x2", "1x8", "2x4"], help="  [1x4 2x2 1x8 2x4]")
    parser.add_argument("--every", nargs="+", type=int, default=[10, 50, 200], help="steps  [10 50 200]")
    parser.add_argument("--out", type=Path, help="a file for all curves, JSON")
    options = parser.parse_args(words)
    if min(options.every) <= DELAY:
        parser.error(
            f"got --every {min(options.every)}: a copy is under way for {DELAY} steps; give at least {DELAY + 1}"
        )
    return options


if __name__ == "__main__":
    raise SystemExit(main(parse()))
