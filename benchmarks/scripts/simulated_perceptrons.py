"""The perceptrons of benchmarks/hosts_overlap_simulation.py: many at once, each a row of an array of parameters."""

from __future__ import annotations

import functools

import numpy as np
from scripts.hosts_compression_worker import BATCH, ROWS, loss_of

Array = np.ndarray
SIZES = (64, 128, 128, 10)
SHAPES = [shape for a, b in zip(SIZES, SIZES[1:]) for shape in ((a, b), (1, b))]
COUNT = sum(a * b for a, b in SHAPES)
RATE = np.float32(1e-3)


def views(flat: Array) -> list[Array]:
    """Return weights and biases of shape (..., a, b) that share the memory of parameters of shape (..., COUNT)."""
    ends = np.cumsum([a * b for a, b in SHAPES])
    return [flat[..., end - a * b : end].reshape(*flat.shape[:-1], a, b) for end, (a, b) in zip(ends, SHAPES)]


def initial(random: np.random.Generator) -> Array:
    """Return the parameters with which all workers of a seed begin."""
    flat = np.zeros(COUNT, np.float32)
    for weights in views(flat)[::2]:
        weights[...] = random.standard_normal(weights.shape) * np.sqrt(2 / weights.shape[0])
    return flat


@functools.lru_cache(maxsize=1)
def digits() -> tuple[Array, Array]:
    """Return rows and labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.data / 16).astype(np.float32), found.target


def gradients(params: list[Array], rows: Array, labels: Array, out: list[Array]) -> None:
    """Write those of `hosts_compression_worker.gradients`, of each model on a mini-batch of its own."""
    w1, b1, w2, b2, w3, b3 = params
    first = np.maximum(rows @ w1 + b1, 0)
    second = np.maximum(first @ w2 + b2, 0)
    scores = second @ w3 + b3
    delta = np.exp(scores - scores.max(-1, keepdims=True))
    delta /= delta.sum(-1, keepdims=True)
    delta -= labels[..., None] == np.arange(SIZES[-1])
    delta /= np.float32(labels.shape[-1])
    back2 = (delta @ w3.swapaxes(-1, -2)) * (second > 0)
    back1 = (back2 @ w2.swapaxes(-1, -2)) * (first > 0)
    for i, (before, back) in enumerate(((rows, back1), (first, back2), (second, delta))):
        np.matmul(before.swapaxes(-1, -2), back, out=out[2 * i])
        np.sum(back, axis=-2, keepdims=True, out=out[2 * i + 1])


class Workers:
    """The workers of all seeds, which train by Adam, each on mini-batches that it draws from all training rows.

    Attributes
    ----------
    x, moments : ndarray, shape (seeds, hosts, COUNT), and a list of two such arrays
    """

    def __init__(self, seeds: list[int], hosts: int) -> None:
        random = [np.random.default_rng(seed) for seed in seeds]
        orders = [each.permutation(len(digits()[1])) for each in random]
        self.data = [(digits()[0][order], digits()[1][order]) for order in orders]
        self.rows, self.labels = (np.stack(each) for each in zip(*self.data))
        self.x = np.stack([initial(each) for each in random])[:, None].repeat(hosts, 1)
        self.moments = [np.zeros_like(self.x), np.zeros_like(self.x)]
        self.grads = np.zeros_like(self.x)
        self.own = [[np.random.default_rng([seed, rank]) for rank in range(hosts)] for seed in seeds]
        self.steps = 0

    def step(self) -> None:
        """Make a step of each worker."""
        self.steps += 1
        chosen = np.stack([[each.integers(0, ROWS, BATCH) for each in own] for own in self.own])
        seed = np.arange(len(self.own))[:, None, None]
        gradients(views(self.x), self.rows[seed, chosen], self.labels[seed, chosen], views(self.grads))
        first, second = (np.float32(1 - part**self.steps) for part in (0.9, 0.999))
        for x, g, m, v in zip(self.x, self.grads, *self.moments):  # a seed's arrays fit into the cache
            m += np.float32(0.1) * (g - m)
            np.multiply(g, g, out=g)
            g -= v
            g *= np.float32(0.001)
            v += g
            np.divide(v, second, out=g)
            np.sqrt(g, out=g)
            g += np.float32(1e-8)
            np.divide(m, g, out=g)
            g *= RATE / first
            x -= g

    def losses(self, models: Array) -> Array:
        """Return the losses of models of shape (seeds, models, COUNT) on training and validation rows, last axis."""
        found = [
            [
                [loss_of(views(model), rows[part], labels[part]) for part in (slice(ROWS), slice(ROWS, None))]
                for model in own
            ]
            for own, (rows, labels) in zip(models, self.data)
        ]
        return np.array(found)
