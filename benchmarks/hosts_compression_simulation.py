"""Codecs for rounds between hosts that were tried and are not offered: low rank, and the largest values in two bits.

The learning of hosts_compression.py in one process: two workers train a perceptron on handwritten digits with Adam, and
meet in a round of LocalSGD after each 20 mini-batches, with error feedback. Losses are those of the center over those
without compression, means over the seeds with standard errors; bytes are those of a worker in a round.

    python benchmarks/hosts_compression_simulation.py [--quick]

"rank R" is PowerSGD (Vogels et al. 2019, arXiv 1905.13727): a matrix M of updates becomes P Q', where P is the
orthonormal basis of the mean of M Q over the workers and Q the mean of M' P, which the next round begins with. Biases
are exact. "two bits K" sends the part K of the largest values of each 4096, with a sign and one of two magnitudes
(SparseLoCo, arXiv 2508.15706), and their places in 12 bits. "SparseLoCo K" is the whole of that method: what is not
sent counts 0.95 times in the next round, which the paper has in place of an outer momentum.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import report
from scripts.hosts_compression_worker import BATCH, HIDDEN, ROWS, gradients, loss_of

from platoon_base.compression.codecs import codec_of

METHODS = (
    *("int4", "int2", "topk(0.1)", "rank 1", "rank 2", "rank 4", "rank 8"),
    *("two bits 0.02", "two bits 0.1", "SparseLoCo 0.02", "SparseLoCo 0.1"),
)
SEEDS, STEPS, EVERY, WORKERS, BLOCK = 6, 600, 20, 2, 4096
DECAY = np.float32(0.95)

Array = np.ndarray
Round = Callable[[list[list[Array]]], tuple[list[list[Array]], int]]  # updates -> what each worker delivers, bytes


def exact(updates: list[list[Array]]) -> tuple[list[list[Array]], int]:
    """Deliver everything."""
    return updates, sum(4 * update.size for update in updates[0])


def elementwise(encode: Callable[[Array], tuple[Array, int]]) -> Round:
    """Return a round in which each array is encoded by itself."""

    def deliver(updates):
        found = [[encode(update.reshape(-1)) for update in own] for own in updates]
        decoded = [[value.reshape(update.shape) for (value, _), update in zip(*pair)] for pair in zip(found, updates)]
        return decoded, sum(nbytes for _, nbytes in found[0])

    return deliver


def by_codec(name: str) -> Callable[[Array], tuple[Array, int]]:
    """Return the encoding of one of the codecs that are offered."""
    codec = codec_of(name)

    def encode(values):
        data, out = np.zeros(codec.nbytes(values.size), np.uint8), np.empty_like(values)
        codec.encode(np.ascontiguousarray(values), data)
        codec.decode(data, out)
        return out, data.size

    return encode


def two_bits(part: float) -> Callable[[Array], tuple[Array, int]]:
    """Return the encoding of the largest values of each block by a sign and one of two magnitudes."""

    def encode(values):
        out, nbytes = np.zeros_like(values), 0
        for start in range(0, values.size, BLOCK):
            block = values[start : start + BLOCK]
            kept = math.ceil(part * block.size)
            places = np.argpartition(np.abs(block), block.size - kept)[block.size - kept :]
            sizes = np.abs(block[places])
            large = sizes > sizes.mean()
            low, high = (sizes[chosen].mean() if chosen.any() else 0 for chosen in (~large, large))
            out[start + places] = np.sign(block[places]) * np.where(large, high, low)
            nbytes += 8 + math.ceil(kept * (2 + 12) / 8)
        return out, nbytes

    return encode


def low_rank(rank: int) -> Round:
    """Return a round of PowerSGD, which begins with the directions of the round before."""
    random = np.random.default_rng(0)
    directions: dict[int, Array] = {}

    def deliver(updates):
        decoded, nbytes = [], 0
        for i, each in enumerate(zip(*updates)):
            if each[0].ndim < 2:
                decoded.append(each)
                nbytes += 4 * each[0].size
                continue
            rows, columns = each[0].shape
            q = directions.get(i, random.standard_normal((columns, min(rank, rows, columns))))
            p, _ = np.linalg.qr(sum(m @ q for m in each) / len(each))
            directions[i] = sum(m.T @ p for m in each) / len(each)
            decoded.append([(p @ directions[i].T).astype(np.float32)] * len(each))
            nbytes += 4 * (p.size + directions[i].size)
        return [list(own) for own in zip(*decoded)], nbytes

    return deliver


def round_of(method: str) -> Round:
    """Return what a round does with the workers' updates."""
    if method == "none":
        return exact
    if method.startswith("rank"):
        return low_rank(int(method.split()[-1]))
    sparse = method.startswith(("two", "SparseLoCo"))
    return elementwise(two_bits(float(method.split()[-1])) if sparse else by_codec(method))


def digits(random: np.random.Generator) -> tuple[Array, Array]:
    """Return rows and labels in the order that a seed gives."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = random.permutation(len(found.target))
    return (found.data[order] / 16).astype(np.float32), found.target[order]


def network(random: np.random.Generator) -> list[Array]:
    """Return the first parameters of the perceptron."""
    sizes, params = [64, HIDDEN, HIDDEN, 10], []
    for a, b in zip(sizes, sizes[1:]):
        params += [(random.standard_normal((a, b)) * np.sqrt(2 / a)).astype(np.float32), np.zeros(b, np.float32)]
    return params


def train(method: str, seed: int) -> tuple[float, float, int]:
    """Train both workers; returns the center's losses on training and validation rows, and the bytes of a round."""
    random = np.random.default_rng(seed)
    rows, labels = digits(random)
    center = network(random)
    models = [[p.copy() for p in center] for _ in range(WORKERS)]
    moments = [[(np.zeros_like(p), np.zeros_like(p)) for p in center] for _ in range(WORKERS)]
    residuals = [[np.zeros_like(p) for p in center] for _ in range(WORKERS)]
    own = [np.random.default_rng([seed, rank]) for rank in range(WORKERS)]
    deliver, nbytes = round_of(method), 0
    decay = DECAY if method.startswith("SparseLoCo") else np.float32(1)
    for step in range(1, STEPS + 1):
        for rank, model in enumerate(models):
            chosen = own[rank].integers(0, ROWS, BATCH)
            for p, g, (m, v) in zip(model, gradients(model, rows[chosen], labels[chosen]), moments[rank]):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                p -= np.float32(1e-3) * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + np.float32(1e-8))
        if step % EVERY:
            continue
        updates = [[p - c + e for p, c, e in zip(model, center, kept)] for model, kept in zip(models, residuals)]
        delivered, nbytes = deliver(updates)
        residuals = [[decay * (u - d) for u, d in zip(*pair)] for pair in zip(updates, delivered)]
        center = [c + sum(each) / np.float32(WORKERS) for c, *each in zip(center, *delivered)]
        models = [[c.copy() for c in center] for _ in range(WORKERS)]
    return loss_of(center, rows[:ROWS], labels[:ROWS]), loss_of(center, rows[ROWS:], labels[ROWS:]), nbytes


def compared(title: str, found: Array, plain: Array) -> dict:
    """Print and return what a method has over exact exchanges; rows are seeds, columns those of `train`."""
    result: dict = {"fewer_bytes": float((plain[:, 2] / found[:, 2]).mean())}
    for column, name in enumerate(("training", "validation")):
        ratios = found[:, column] / plain[:, column] - 1
        error = float(ratios.std(ddof=1) / math.sqrt(len(ratios)))
        result[name] = {"loss": float(found[:, column].mean()), "over": float(ratios.mean()), "error": error}
    words = [f"{result[name]['over']:+.1%} (+- {result[name]['error']:.1%})" for name in ("training", "validation")]
    print(f"{title} {result['fewer_bytes']:6.1f} times fewer bytes; loss over exact: {', '.join(words)}", flush=True)
    return result


def main(quick: bool, out: Path) -> None:
    """Train by each method with each seed; print a table and save it."""
    seeds = range(1, 3 if quick else SEEDS + 1)
    plain = np.array([train("none", seed) for seed in seeds])
    table = []
    for method in METHODS[1::3] if quick else METHODS:
        found = np.array([train(method, seed) for seed in seeds])
        table.append({"method": method, **compared(f"{method:15}", found, plain)})
    if not quick:
        report.save("hosts_compression_simulation", {"seeds": len(seeds), "results": table}, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, few methods; nothing is saved")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    main(**vars(parser.parse_args()))
