"""Codecs for averaged gradients between hosts that were tried and are not offered, beside those that are.

The network and data of hosts_compression_simulation.py in one process: the gradients of two workers are averaged in
each of 600 steps, with error feedback. Losses are over those of exact averages, means over the seeds with standard
errors; bytes are those that a worker sends in a step, without the way back.

    python benchmarks/hosts_gradients_simulation.py [--quick]

"signs" is one bit for each value: columns are sent as the means of their positive and of their other values (Seide et
al. 2014, "1-bit stochastic gradient descent"). "threshold T" sends a value beyond T as T with its sign, and its place
(Strom 2015, "Scalable distributed DNN training using commodity GPU cloud computing"); the rest stays for later.
"momentum topk(K)" is deep gradient compression (Lin et al. 2018, arXiv 1712.01887): each worker adds momentum before it
chooses the largest values, and clears the momentum of what it sends; over the first 60 steps the part shrinks to K.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import report
from hosts_compression_simulation import SEEDS, by_codec, compared, digits, network
from scripts.hosts_compression_worker import BATCH, ROWS, gradients, loss_of

CODECS = (
    *("int8", "int4", "int2", "signs", "threshold 0.003", "threshold 0.03"),
    *("topk(0.1)", "topk(0.02)", "topk(0.01)"),
)
METHODS = {"adam": CODECS, "momentum": (*CODECS, "momentum topk(0.1)", "momentum topk(0.01)")}
STEPS, WORKERS, MOMENTUM = 600, 2, 0.9
RATES = {"adam": 1e-3, "momentum": 0.02}
WARM_UP_STEPS, WARM_UP_PARTS = 15, (0.25, 0.0625, 0.0156, 0.004)

Array = np.ndarray
Encode = Callable[[Array], tuple[Array, int]]  # values of one array -> what arrives of them, bytes
Average = Callable[[list[list[Array]]], tuple[list[Array], int]]  # each worker's gradients -> their average, bytes


def signs(values: Array) -> tuple[Array, int]:
    """Encode each value by a bit, and each column by two means."""
    columns = values.reshape(len(values), -1)
    up = columns >= 0
    out = np.zeros_like(columns)
    for chosen in (up, ~up):
        means = np.where(chosen, columns, 0).sum(0) / np.maximum(chosen.sum(0), 1)
        out += np.where(chosen, means, 0).astype(np.float32)
    return out.reshape(values.shape), -(-values.size // 8) + 8 * columns.shape[1]


def threshold(limit: float) -> Encode:
    """Return the encoding of values beyond a limit by the limit, a sign, and a place."""

    def encode(values):
        sent = np.abs(values) > limit
        return np.where(sent, np.sign(values) * np.float32(limit), 0).astype(np.float32), 4 * int(sent.sum())

    return encode


def flat(encode: Encode) -> Encode:
    """Return an encoding of arrays of any shape by one of flat arrays."""

    def shaped(values):
        found, nbytes = encode(values.reshape(-1))
        return found.reshape(values.shape), nbytes

    return shaped


class Kept:
    """Encoding with error feedback: what an encoding drops is added to the next values."""

    def __init__(self, encode: Encode) -> None:
        self._encode, self._kept = encode, {}

    def __call__(self, values: list[Array]) -> tuple[list[Array], int]:
        total, out = 0, []
        for i, value in enumerate(values):
            wanted = value + self._kept.get(i, np.float32(0))
            found, nbytes = self._encode(wanted)
            self._kept[i] = wanted - found
            out.append(found)
            total += nbytes
        return out, total


def mean(gradients_of_all: list[list[Array]]) -> list[Array]:
    """Return the means of the workers' arrays."""
    return [sum(each) / np.float32(len(each)) for each in zip(*gradients_of_all)]


def both_ways(encode: Encode) -> Average:
    """Return averages whose contributions and results are encoded, as those between hosts are."""
    to, back = [Kept(encode) for _ in range(WORKERS)], Kept(encode)

    def average(all_gradients):
        found = [kept(own) for kept, own in zip(to, all_gradients)]
        return back(mean([values for values, _ in found]))[0], found[0][1]

    return average


def one_way(encode: Encode) -> Average:
    """Return averages of which each worker sends its part to all, for codecs whose sums have more values."""
    to = [Kept(encode) for _ in range(WORKERS)]

    def average(all_gradients):
        found = [kept(own) for kept, own in zip(to, all_gradients)]
        return mean([values for values, _ in found]), found[0][1]

    return average


def largest(values: Array, part: float) -> Array:
    """Return where the largest values are."""
    kept = max(1, round(part * values.size))
    return np.abs(values) >= np.partition(np.abs(values).reshape(-1), values.size - kept)[values.size - kept]


def with_momentum(part: float) -> Average:
    """Return averages of deep gradient compression; what it returns is a step, to which no momentum is added."""
    momenta, sums = ([{} for _ in range(WORKERS)] for _ in range(2))
    parts: Iterator[float] = iter([max(part, p) for p in WARM_UP_PARTS for _ in range(WARM_UP_STEPS)])

    def average(all_gradients):
        now, nbytes, sent = next(parts, part), 0, []
        for momentum, total, own in zip(momenta, sums, all_gradients):
            sent.append([])
            for i, gradient in enumerate(own):
                momentum[i] = np.float32(MOMENTUM) * momentum.get(i, np.float32(0)) + gradient
                total[i] = total.get(i, np.float32(0)) + momentum[i]
                chosen = largest(total[i], now)
                sent[-1].append(np.where(chosen, total[i], np.float32(0)))
                total[i], momentum[i] = (np.where(chosen, np.float32(0), kept[i]) for kept in (total, momentum))
                nbytes += 8 * int(chosen.sum())
        return mean(sent), nbytes // WORKERS

    return average


def average_of(method: str) -> Average:
    """Return how a method averages."""
    if method == "none":
        return lambda all_gradients: (mean(all_gradients), sum(4 * g.size for g in all_gradients[0]))
    kind, _, value = method.partition(" ")
    if kind == "momentum":
        return with_momentum(float(value[len("topk(") : -1]))
    if kind == "threshold":
        return one_way(threshold(float(value)))
    if kind == "signs":
        return both_ways(signs)
    return (one_way if kind.startswith("topk") else both_ways)(flat(by_codec(method)))


def steps_of(optimizer: str, method: str) -> Callable[[list[Array], list[Array], int], None]:
    """Return the function that changes parameters by an averaged gradient, in a step that counts from 1."""
    rate = np.float32(RATES[optimizer])
    first: dict[int, Array] = {}
    second: dict[int, Array] = {}

    def step(model, averaged, number):
        for i, (p, g) in enumerate(zip(model, averaged)):
            if optimizer == "adam":
                first[i] = 0.9 * first.get(i, 0) + 0.1 * g
                second[i] = 0.999 * second.get(i, 0) + 0.001 * g * g
                p -= rate * (first[i] / (1 - 0.9**number)) / (np.sqrt(second[i] / (1 - 0.999**number)) + 1e-8)
            elif method.startswith("momentum"):
                p -= rate * g
            else:
                first[i] = np.float32(MOMENTUM) * first.get(i, np.float32(0)) + g
                p -= rate * first[i]

    return step


def train(optimizer: str, method: str, seed: int) -> tuple[float, float, float]:
    """Train by averages; returns the losses on training and validation rows, and the mean bytes of a step."""
    random = np.random.default_rng(seed)
    rows, labels = digits(random)
    model = network(random)
    own = [np.random.default_rng([seed, rank]) for rank in range(WORKERS)]
    average, step, sent = average_of(method), steps_of(optimizer, method), 0
    for number in range(1, STEPS + 1):
        chosen = [each.integers(0, ROWS, BATCH) for each in own]
        averaged, nbytes = average([gradients(model, rows[some], labels[some]) for some in chosen])
        step(model, averaged, number)
        sent += nbytes
    return loss_of(model, rows[:ROWS], labels[:ROWS]), loss_of(model, rows[ROWS:], labels[ROWS:]), sent / STEPS


def main(quick: bool, out: Path) -> None:
    """Train with each optimizer and method, with each seed; print a table and save it."""
    seeds = range(1, 3 if quick else SEEDS + 1)
    table = []
    for optimizer, methods in METHODS.items():
        plain = np.array([train(optimizer, "none", seed) for seed in seeds])
        print(f"{optimizer:10} {'none':20} losses {plain[:, 0].mean():.4g}, {plain[:, 1].mean():.4g}", flush=True)
        for method in methods[3::5] if quick else methods:
            found = np.array([train(optimizer, method, seed) for seed in seeds])
            title = f"{optimizer:10} {method:20}"
            table.append({"optimizer": optimizer, "method": method, **compared(title, found, plain)})
    if not quick:
        report.save("hosts_gradients_simulation", {"seeds": len(seeds), "results": table}, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, few methods; nothing is saved")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    main(**vars(parser.parse_args()))
