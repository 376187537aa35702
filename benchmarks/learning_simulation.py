"""What combining the steps of N workers is worth by equations alone: many settings and seeds at once, in one process.

    python benchmarks/learning_simulation.py [--workers 2 4 8] [--seeds 1 2 3 4 5] [--passes 20]
        [--table rules|easgd|scaled|moments|averaged|slow|outer] [--slow] [--quick]

It needs torch, Fashion-MNIST (`make data`) and for the whole table a GPU; on a CPU take --quick. Nothing of this
package runs: no process, no shared memory. Numbers are steps per worker and say nothing about seconds.

Each of N workers trains a perceptron 784-128-10 by Adam on mini-batches of 128 of its own N-th of the rows. All workers
of a method, for all its settings and seeds, make a step in one batched product of matrices. Then come those that are
due, worker after worker. Arrivals are staggered evenly: two are 1/N of a period apart. Where the settings say "random
arrivals", each worker begins at a random phase of the period, another for each seed. Workers that wait come together.
A worker 0 that is twice as slow makes a step at every other tick, and steps are then those of the fast ones.

The methods' equations and the rows of the table are in scripts/simulated_methods.py. The center is validated. Plain
training tries four learning rates; all methods keep the best one, times what their row says. Steps to a target are
interpolated between two validations, four for each pass. Medians are over the seeds. "2 x" is two times fewer steps
than plain training at its best rate. Matrix products on a GPU are in TF32.
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import report
from learning_report import best_rate, first_reach, median_to
from scripts.learning_methods import PLAIN
from scripts.learning_tasks import DataMissing, Task

if find_spec("torch") is None:
    print("skipped: the simulation needs torch, which .nox/keras3 has")
    raise SystemExit(0)

import torch
from scripts.simulated_methods import COUNTS, METHODS, TABLES, Setting
from scripts.simulated_muon import MOMENTUM, orthogonal, scale
from scripts.simulated_networks import NETWORKS, Gradients, Simulated

Tensors = tuple[torch.Tensor, ...]
AVERAGED = ", averaged"
K = 16  # the average of the center reaches back over the last 1/(k + 1) of the steps


class Models:
    """The workers of one method, for all its settings and seeds: tensors of shape (settings x seeds, N, parameters).

    Parameters
    ----------
    rows : list of Setting
        Of one method, number of workers, start and speed.
    seeds : list of int
        Each gives initial parameters and the order of the rows, the same for all settings.
    rate : float
        Adam's learning rate where a setting's multiple is 1.
    network : Simulated
    """

    def __init__(self, rows: list[Setting], seeds: list[int], rate: float, device: str, network: Simulated) -> None:
        self.network, self.gradients = network, Gradients(network)
        self.method, self.first, n = METHODS[rows[0].method], rows[0], rows[0].workers
        every = [row for row in rows for _ in seeds]
        self.c = torch.stack([network.initial(seed) for seed in seeds]).repeat(len(rows), 1).to(device)
        self.x = self.c[:, None].repeat(1, n, 1)
        self.moments = [torch.zeros_like(self.x) for _ in range(1 if network.optimizer == "sgd" else 2)]
        self.shared_moments = [torch.zeros_like(self.c) for _ in self.moments]
        self.average, self.averaged = self.c.clone(), torch.zeros(len(every), 1, device=device)
        self.rate = torch.tensor([rate * row.rate for row in every], device=device)[:, None, None]
        self.p = {name: torch.tensor([[row.values[name]] for row in every], device=device) for name in rows[0].values}
        self.center = {name: _zeros(self.c, name) for name in self.method.center}
        self.own = {name: self.x.clone() if name == "x_old" else _zeros(self.x, name) for name in self.method.own}
        self.period = np.array([row.period for row in every])[:, None]
        self.phase = self.period * np.arange(n) // n
        if self.first.random:
            drawn = [np.random.RandomState(seed).rand(n) for seed in seeds] * len(rows)
            self.phase = (np.stack(drawn) * self.period).astype(int)
        self.phase *= not self.method.waits
        self.ticks, self.steps = 0, np.zeros(n, int)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Make one step of Adam on rows of shape (models, N, batch, ...) and their classes; then let workers arrive."""
        n = self.first.workers
        moves = np.ones(n, bool)
        moves[0] = self.ticks % self.first.slow == 0
        g = self.gradients(self.x.flatten(0, 1), x.flatten(0, 1), y.flatten(0, 1)).view_as(self.x)
        averaging = self.method.waits and (self.method.arrive is None or self.ticks < self.first.start)
        if averaging:
            g = g.mean(1, keepdim=True).expand_as(self.x)
        if self.network.clip:
            g = g * (self.network.clip / g.norm(dim=2, keepdim=True)).clamp(max=1)
        self.ticks, self.steps = self.ticks + 1, self.steps + moves
        {"adam": self._adam, "sgd": self._momentum, "muon": self._muon}[self.network.optimizer](g, moves)
        if averaging:
            self.c = self.x.mean(1)
            self._add_to_average(slice(None), 1)
        else:
            self._arrivals(moves)

    def _momentum(self, g: torch.Tensor, moves: np.ndarray) -> None:
        """v := 0.9 v - rate g; x := x + v."""
        weight = torch.as_tensor(moves, device=g.device).float()[:, None]
        (v,) = self.moments
        v += weight * (-0.1 * v - self.rate * g)
        self.x += weight * v

    def _add_to_average(self, models: Any, steps: Any) -> None:
        """t := t + dt; average := average + w (c - average) with w = min(1, (k + 1) dt / (t + k)) (1212.1824)."""
        self.averaged[models] += steps
        weight = ((K + 1) * steps / (self.averaged[models] + K)).clamp(max=1)
        self.average[models] += weight * (self.c[models] - self.average[models])

    def _adam(self, g: torch.Tensor, moves: np.ndarray) -> None:
        """g1 := 0.9 g1 + 0.1 g; g2 := 0.999 g2 + 0.001 g^2; x := x - rate g1' / (sqrt(g2') + 1e-7) (1412.6980)."""
        weight, t = (torch.as_tensor(each, device=g.device).float()[:, None] for each in (moves, self.steps))
        g1, g2 = self.moments
        g1.lerp_(g, 0.1 * weight)
        g2.lerp_(g * g, 0.001 * weight)
        t = t.clamp(min=1)
        self.x -= weight * self.rate * (g1 / (1 - 0.9**t)) / ((g2 / (1 - 0.999**t)).sqrt() + 1e-7)

    def _muon(self, g: torch.Tensor, moves: np.ndarray) -> None:
        """Adam but for hidden matrices: M := 0.95 M + g; x := x - rate scale orthogonal(g + 0.95 M) (2502.16982)."""
        if not moves.all():
            raise ValueError("workers with Muon are all as fast here")
        total, ends = self.moments[0].clone(), np.cumsum([np.prod(shape) for shape in self.network.shapes])
        before = self.x.clone()
        self._adam(g, moves)
        for place in self.network.hidden:
            shape = self.network.shapes[place]
            at = slice(int(ends[place] - np.prod(shape)), int(ends[place]))
            self.moments[0][..., at] = MOMENTUM * total[..., at] + g[..., at]
            step = (g[..., at] + MOMENTUM * self.moments[0][..., at]).unflatten(2, shape)
            self.x[..., at] = before[..., at] - self.rate * scale(shape) * orthogonal(step).flatten(2)

    def _arrivals(self, moves: np.ndarray) -> None:
        due = moves & (((self.steps + self.phase) % self.period == 0) | (self.steps <= self.first.start))
        if self.method.waits:
            self.exchange(slice(None), ((self.ticks % self.period) == 0)[:, 0])
        else:
            for worker in range(self.first.workers):
                self.exchange(worker, due[:, worker])

    def exchange(self, who: int | slice, due: np.ndarray) -> None:
        """Let a worker, or all, synchronize in those models in which they are due."""
        if not due.any():
            return
        models = slice(None) if due.all() else torch.as_tensor(due.nonzero()[0], device=self.x.device)
        at = SimpleNamespace(x=self.x[models, who], c=self.c[models])
        for state, place in ((self.center, models), (self.own, (models, who))):
            vars(at).update({name: value[place] for name, value in state.items()})
        p = SimpleNamespace(**{name: value[models] for name, value in self.p.items()}, workers=self.first.workers)
        self.method.arrive(at, p)
        self.x[models, who], self.c[models] = at.x, at.c
        for state, place in ((self.center, models), (self.own, (models, who))):
            for name, value in state.items():
                value[place] = getattr(at, name)
        steps = torch.as_tensor(self.period, device=self.x.device)[models].float()
        self._add_to_average(models, steps if self.method.waits else steps / self.first.workers)
        for own, shared in zip(self.moments, self.shared_moments):
            if self.first.moments == "mean":
                own[models, who] = own[models, who].mean(1, keepdim=True).expand_as(own[models, who])
            elif self.first.moments in ("pull", "same"):
                e, alpha = own[models, who] - shared[models], 0.9 / self.first.workers
                own[models, who] -= (alpha if self.first.moments == "pull" else p.pull) * e
                shared[models] += alpha * e
            elif self.first.moments == "adopt":
                shared[models] += (own[models, who] - shared[models]) / self.first.workers
                own[models, who] = shared[models]


def _zeros(like: torch.Tensor, name: str) -> torch.Tensor:
    return torch.zeros_like(like[..., :1] if name in COUNTS else like)


def simulate(
    network: Simulated, rows: list[Setting], seeds: list[int], rate: float, passes: float, data: Tensors
) -> list[tuple[list[list], list[list]]]:
    """Return the validations of each setting, of its centers and of their averages, a curve for each seed.

    A point is (steps of a fast worker, 0.0, what is validated).

    Parameters
    ----------
    rows : list of Setting
        As `Models` takes them.
    data : tuple of torch.Tensor
        Rows and classes to train on, rows and classes to validate on, on the device that computes.
    """
    x, y, x_valid, y_valid = data
    n, count, size = rows[0].workers, len(rows) * len(seeds), network.task.batch_size
    models, per_pass = Models(rows, seeds, rate, str(x.device), network), len(x) // n // size
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    curves: list[list] = [[] for _ in range(count)]
    averaged: list[list] = [[] for _ in range(count)]
    for t in range(round(per_pass * passes)):
        if t % per_pass == 0:
            orders = torch.stack([torch.rand(n, len(x) // n, generator=each).argsort(1) for each in generators])
            orders = (orders * n + torch.arange(n)[:, None]).to(x.device)  # worker i has the rows i, i + N, ...
        batch = orders[:, :, t % per_pass * size :][:, :, :size].repeat(len(rows), 1, 1)
        models.step(x[batch], y[batch])
        if (t + 1) % max(1, per_pass // 4) == 0:
            for curve, value in zip(curves, network.validate(models.c, x_valid, y_valid)):
                curve.append((t + 1, 0.0, value))
            for curve, value in zip(averaged, network.validate(models.average, x_valid, y_valid)):
                curve.append((t + 1, 0.0, value))
    return [(curves[i : i + len(seeds)], averaged[i : i + len(seeds)]) for i in range(0, count, len(seeds))]


def runs_of(task: Task, row: Setting, rate: float, curves: list[list]) -> list[dict]:
    """Return a run for each seed, as benchmarks/learning.py keeps them."""
    best = min if task.lower else max
    return [
        {
            "method": row.method,
            "workers": row.workers,
            "settings": row.label,
            "rate": rate,
            "curve": curve,
            "to_target": {f"{target:g}": first_reach(curve, target, task.lower) for target in task.targets},
            "best": best(value for *_, value in curve),
        }
        for curve in curves
    ]


def line(task: Task, row: Setting, runs: list[dict], plain: list[dict]) -> list[str]:
    """Return a row of the table: medians over the seeds, and how many times fewer than plain training's."""
    cells = []
    for target in map("{:g}".format, task.targets):
        steps, alone = median_to(runs, target), median_to(plain, target)
        times = f", {alone / steps:.2f} x" if steps and alone else ""
        cells.append("never" if steps is None else f"{steps:.0f}{times}")
    return [row.method, str(row.workers), row.label, *cells, f"{report.median([run['best'] for run in runs]):.4f}"]


def grouped(rows: list[Setting]) -> list[list[Setting]]:
    """Return the settings that `Models` can train together."""
    groups: dict[tuple, list[Setting]] = {}
    for row in rows:
        groups.setdefault((row.method, row.workers, row.start, row.random, row.slow, row.moments), []).append(row)
    return list(groups.values())


def main(options: argparse.Namespace) -> int:
    network = NETWORKS[options.task]()
    task, device = network.task, "cuda" if torch.cuda.is_available() else "cpu"
    try:
        data = network.data(device)
    except DataMissing as exc:
        print(exc)
        return 1
    torch.set_float32_matmul_precision("high")
    study = (options.seeds, 1.0, options.passes or task.epochs, data)
    rates = [Setting(PLAIN, 1, {}, rate=rate) for rate in options.rates or network.rates]
    found = simulate(network, rates, *study)
    alone, averaged = ([runs_of(task, row, row.rate, curves[i]) for row, curves in zip(rates, found)] for i in (0, 1))
    every = [run for runs in alone for run in runs]
    best = best_rate(every, task.targets, task.lower)
    plain = next(runs for row, runs in zip(rates, alone) if row.rate == best)
    print(f"plain training does best with the learning rate {best:g}", flush=True)
    found = [row for n in options.workers for row in TABLES[options.table](n)]
    rows = [row for row in found if not options.methods or row.method in options.methods]
    if options.slow:
        rows += [row._replace(slow=2) for row in rows if not METHODS[row.method].waits and row.slow == 1]
    lines = []
    for row, *both in zip(rates, alone, averaged):
        for runs, word in zip(both, ("", AVERAGED)):
            lines.append(line(task, row._replace(rate=1), runs, plain))
            lines[-1][2] = f"rate {row.rate:g}{word}"
            print("; ".join(lines[-1]), flush=True)
    every += [{**run, "settings": AVERAGED} for runs in averaged for run in runs]
    for group in grouped(rows):
        for row, curves in zip(group, simulate(network, group, options.seeds, best, *study[2:])):
            for each, word in zip(curves, ("", AVERAGED)):
                runs = runs_of(task, row, best * row.rate, each)
                every += [{**run, "settings": run["settings"] + word} for run in runs]
                lines.append(line(task, row, runs, plain))
                lines[-1][2] += word
                print("; ".join(lines[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"task": options.task, "best_rate": best, "runs": every}))
    title = f"{options.task}: {len(options.seeds)} seeds, {study[2]:g} passes, Adam {best:g}, on {device}"
    report.table(
        title, ["method", "workers", "settings", *(f"steps to {t:g}" for t in task.targets), "best"], lines, 180
    )
    return 0


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4, 8], help="numbers of workers  [2 4 8]")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5], help="medians are over them  [1 to 5]")
    parser.add_argument("--task", choices=NETWORKS, default="fashion-mnist", help="  [fashion-mnist]")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="only these  [all]")
    parser.add_argument("--rates", nargs="+", type=float, help="of plain training, to be tried  [the task's]")
    parser.add_argument("--passes", type=float, help="over the data, all workers together  [the task's]")
    parser.add_argument("--table", choices=TABLES, default="rules", help="which settings  [rules]")
    parser.add_argument("--slow", action="store_true", help="also with a slow worker wherever nobody waits")
    parser.add_argument("--quick", action="store_true", help="2 workers, 1 seed, 1 pass, one learning rate: minutes")
    parser.add_argument("--out", type=Path, help="a file for all curves, JSON")
    options = parser.parse_args(words)
    if options.quick:
        options.workers, options.seeds, options.passes, options.rates = [2], [1], 1.0, [0.002]
    return options


if __name__ == "__main__":
    raise SystemExit(main(parse()))
