"""What a worker of hosts_target.py does: ``FOLDER METHOD STEPS EVERY RATE LONGEST_S SEED``; writes FOLDER/RANK.json.

METHOD is ``alone``, ``gradients`` or a rule. Behind every EVERY steps it keeps the weights, which it evaluates at the
end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from hosts_compression_worker import WAIT_S, gradients, loss_of
from learning_tasks import fashion_mnist

from platoon_base import connect, rules
from platoon_base.worker import FlatAllReduce

BATCH, HIDDEN, VALIDATED = 32, 1024, 2000


class Adam:
    """Adam, in the memory of the weights."""

    def __init__(self, params: list, rate: float) -> None:
        self._params, self._rate, self._steps = params, rate, 0
        self._moments = [(np.zeros_like(p), np.zeros_like(p), np.empty_like(p)) for p in params]

    def step(self, grads: list) -> None:
        """Make a step."""
        self._steps += 1
        unbiased = np.float32(np.sqrt(1 - 0.999**self._steps))
        rate = np.float32(self._rate / (1 - 0.9**self._steps)) * unbiased
        for p, g, (m, v, room) in zip(self._params, grads, self._moments):
            np.subtract(g, m, out=room)
            room *= np.float32(0.1)
            m += room
            np.multiply(g, g, out=room)
            room -= v
            room *= np.float32(0.001)
            v += room
            np.sqrt(v, out=room)
            room += np.float32(1e-8) * unbiased
            np.divide(m, room, out=room)
            room *= rate
            p -= room


def train(worker, method: str, steps: int, every: int, rate: float, longest_s: float, seed: int) -> list:
    """Return (step, seconds, loss) of each time that the weights were kept."""
    (rows, labels), (validated, answers) = ((images, one_hot.argmax(axis=1)) for images, one_hot in fashion_mnist())
    random = np.random.default_rng(seed)
    sizes = [784, HIDDEN, HIDDEN, 10]
    params = []
    for a, b in zip(sizes, sizes[1:]):
        params += [(random.standard_normal((a, b)) * np.sqrt(2 / a)).astype(np.float32), np.zeros(b, np.float32)]
    averages, alone = method == "gradients", method == "alone"
    rule = None if averages or alone else eval(method, vars(rules))
    waits = rule is not None and not isinstance(rule, rules.AveragedEASGD)
    period = every if waits else 1
    completes = int(period * rules.overlap_of(rule)) if waits else 0
    if rule is not None:
        worker.init_shared_params(params, rule, timeout_s=WAIT_S)
    combine, adam = FlatAllReduce(worker, WAIT_S, compress=True), Adam(params, rate)
    own = np.random.default_rng([seed, worker.global_rank])
    worker.barrier("begin", timeout_s=WAIT_S)
    kept, began = [], time.perf_counter()
    for step in range(1, steps + 1):
        chosen = own.integers(0, len(rows), BATCH)
        grads = [np.ascontiguousarray(each) for each in gradients(params, rows[chosen], labels[chosen])]
        if averages:
            combine(grads, "mean")
        adam.step(grads)
        worker.progress(steps=1)
        if completes and step % period == completes % period:
            worker.advanced.complete_round(timeout_s=WAIT_S)
        if rule is not None and step % period == 0:
            worker.sync_params(timeout_s=WAIT_S)
        if step % every == 0:
            seconds = time.perf_counter() - began
            if rule is None or waits:
                kept.append((step, seconds, [p.copy() for p in params]))
            else:
                with worker.center_params():
                    kept.append((step, seconds, [p.copy() for p in params]))
            # All stop at the same step: those that wait for each other must make as many rounds.
            if any(worker.gather(seconds > longest_s, name="long enough", timeout_s=WAIT_S)):
                break
    if waits:
        worker.advanced.complete_round(timeout_s=WAIT_S)
    worker.barrier("trained", timeout_s=WAIT_S)
    return [
        (step, seconds, loss_of(weights, validated[:VALIDATED], answers[:VALIDATED])) for step, seconds, weights in kept
    ]


def main() -> None:
    """Train, and write."""
    folder, method, *words = sys.argv[1:]
    worker = connect()
    points = train(worker, method, int(words[0]), int(words[1]), float(words[2]), float(words[3]), int(words[4]))
    Path(folder, f"{worker.global_rank}.json").write_text(json.dumps({"points": points}))
    worker.barrier("end", timeout_s=WAIT_S)


if __name__ == "__main__":
    main()
