"""What a worker of hosts_compression.py does; writes FOLDER/RANK.json.

hosts_compression_worker.py FOLDER rounds BYTES STEPS STEP_S ROUNDS RULE: rounds of steps that take a fixed time
hosts_compression_worker.py FOLDER reduce BYTES CALLS WAY: averages of arrays, or of tensors by NCCL or by the hosts
hosts_compression_worker.py FOLDER learn RULE STEPS EVERY SEED LOSES: a perceptron on handwritten digits
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from platoon_base import connect, rules
from platoon_base.worker import ErrorFeedback, FlatAllReduce

WAIT_S = 400
ROWS, BATCH, HIDDEN = 1437, 16, 256  # rows of the digits that are trained on; the others validate


def sent_bytes() -> int:
    """Return what this host has sent over its interface to the others, with all headers."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    return 0


def courier_cpu_s() -> float:
    """Return the processor time that the courier of this host has taken."""
    import psutil

    for process in psutil.Process(os.getppid()).children():
        if any("courier" in word for word in process.cmdline()):
            times = process.cpu_times()
            return times.user + times.system
    return 0.0


def make_rounds(worker, size_bytes: int, steps: int, step_s: float, rounds: int, rule: str) -> dict:
    random, used = np.random.default_rng(worker.global_rank), eval(rule, vars(rules))
    completes = int(steps * rules.overlap_of(used))
    x = np.zeros(size_bytes // 4, np.float32)
    worker.init_shared_params([x], used, timeout_s=WAIT_S)
    progress = random.standard_normal(x.size).astype(np.float32) * np.float32(1e-3)
    worker.barrier("begin", timeout_s=WAIT_S)
    taken, sent, cpu = [], [], []
    for _ in range(rounds):
        waited = 0.0
        for step in range(steps):
            time.sleep(step_s)
            worker.progress(steps=1)
            if step + 1 == completes:
                began = time.perf_counter()
                worker.advanced.complete_round(timeout_s=WAIT_S)
                waited = time.perf_counter() - began
        x += progress
        np.multiply(progress, np.float32(-1), out=progress)
        worker.barrier("trained", timeout_s=WAIT_S)  # so that no round waits for a worker that still trains
        before, before_s, began = sent_bytes(), courier_cpu_s(), time.perf_counter()
        worker.sync_params(timeout_s=WAIT_S)
        taken.append(waited + time.perf_counter() - began)
        worker.barrier("met", timeout_s=WAIT_S)
        sent.append(sent_bytes() - before)
        cpu.append(courier_cpu_s() - before_s)
    worker.advanced.complete_round(timeout_s=WAIT_S)
    worker.barrier("completed", timeout_s=WAIT_S)
    return {"rounds_s": taken, "courier_cpu_s": cpu, "sent_bytes": sent}


def make_averages(worker, size_bytes: int, calls: int, way: str) -> dict:
    random = np.random.default_rng(worker.global_rank)
    x = random.standard_normal(size_bytes // 4).astype(np.float32)
    out, feedback = np.empty_like(x), ErrorFeedback()
    worker.all_reduce(np.ones(1 << 10, np.float32), timeout_s=WAIT_S)
    if way != "arrays":
        combine = tensor_average(worker, x, way, feedback)
    else:

        def combine() -> None:
            worker.all_reduce(x, "mean", out, feedback=feedback, timeout_s=WAIT_S)

    taken, sent, cpu = [], [], []
    for _ in range(calls):
        worker.barrier("begin", timeout_s=WAIT_S)
        before, began, cpu_before = sent_bytes(), time.perf_counter(), time.process_time()
        combine()
        taken.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_before)
        worker.barrier("end", timeout_s=WAIT_S)
        sent.append(sent_bytes() - before)
    return {"calls_s": taken, "sent_bytes": sent, "cpu_s": cpu}


def tensor_average(worker, x: np.ndarray, way: str, feedback: ErrorFeedback) -> Callable[[], None]:
    """Return a call that averages a tensor on a GPU, and waits for it; by the hosts with page-locked memory."""
    import torch

    tensor, host = torch.from_numpy(x).cuda(), torch.from_numpy(x).pin_memory()

    def combine() -> None:
        if way == "NCCL":
            worker.all_reduce(tensor, "mean", tensor, feedback=feedback, timeout_s=WAIT_S)
        else:
            host.copy_(tensor)
            worker.all_reduce(host.numpy(), "mean", host.numpy(), feedback=feedback, timeout_s=WAIT_S)
            tensor.copy_(host, non_blocking=True)
        torch.cuda.synchronize()

    return combine


def forward(params: list, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w1, b1, w2, b2, w3, b3 = params
    first = np.maximum(rows @ w1 + b1, 0)
    second = np.maximum(first @ w2 + b2, 0)
    scores = second @ w3 + b3
    scores -= scores.max(axis=1, keepdims=True)
    return first, second, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def gradients(params: list, rows: np.ndarray, labels: np.ndarray) -> list:
    first, second, logs = forward(params, rows)
    delta = np.exp(logs)
    delta[np.arange(len(labels)), labels] -= 1
    delta /= len(labels)
    back2 = (delta @ params[4].T) * (second > 0)
    back1 = (back2 @ params[2].T) * (first > 0)
    return [rows.T @ back1, back1.sum(0), first.T @ back2, back2.sum(0), second.T @ delta, delta.sum(0)]


def loss_of(params: list, rows: np.ndarray, labels: np.ndarray) -> float:
    return float(-forward(params, rows)[2][np.arange(len(labels)), labels].mean())


def learn(worker, rule: str, steps: int, every: int, seed: int, loses: bool) -> dict:
    """Train with Adam on rows of this worker's own, and return the losses of the center at the end.

    If the hosts are to lose their residuals, as in a restart, the center is overwritten by its own values half way.
    """
    from sklearn.datasets import load_digits

    random = np.random.default_rng(seed)
    digits = load_digits()
    order = random.permutation(len(digits.target))
    rows, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    sizes = [64, HIDDEN, HIDDEN, 10]
    params = []
    for a, b in zip(sizes, sizes[1:]):
        params += [(random.standard_normal((a, b)) * np.sqrt(2 / a)).astype(np.float32), np.zeros(b, np.float32)]
    averages = rule == "gradients"
    combine = FlatAllReduce(worker, WAIT_S, compress=True)
    completes = 0
    if not averages:
        used = eval(rule, vars(rules))
        completes = int(every * rules.overlap_of(used))
        worker.init_shared_params(params, used, timeout_s=WAIT_S)
    worker.barrier("begin", timeout_s=WAIT_S)
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in params]
    own = np.random.default_rng([seed, worker.global_rank])
    for step in range(1, steps + 1):
        chosen = own.integers(0, ROWS, BATCH)
        grads = [np.ascontiguousarray(each) for each in gradients(params, rows[chosen], labels[chosen])]
        if averages:
            combine(grads, "mean")
        for p, g, (m, v) in zip(params, grads, moments):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            p -= np.float32(1e-3) * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + np.float32(1e-8))
        worker.progress(steps=1)
        if step % every == 0 and not averages:
            worker.sync_params(timeout_s=WAIT_S)
        elif completes and step % every == completes:
            worker.advanced.complete_round(timeout_s=WAIT_S)
        if loses and step == steps // 2:
            if worker.global_rank == 0:
                worker.copy_to_global(timeout_s=WAIT_S)
            worker.barrier("overwritten", timeout_s=WAIT_S)
            worker.copy_to_local(timeout_s=WAIT_S)
    if not averages:
        worker.copy_to_local(timeout_s=WAIT_S)  # also completes a round that overlaps
    return {
        "train": loss_of(params, rows[:ROWS], labels[:ROWS]),
        "validation": loss_of(params, rows[ROWS:], labels[ROWS:]),
    }


def main() -> None:
    """Do one thing, all workers at the same time."""
    folder, kind, *words = sys.argv[1:]
    worker = connect()
    if kind == "rounds":
        found = make_rounds(worker, int(words[0]), int(words[1]), float(words[2]), int(words[3]), words[4])
    elif kind == "reduce":
        found = make_averages(worker, int(words[0]), int(words[1]), words[2])
    else:
        found = learn(worker, words[0], int(words[1]), int(words[2]), int(words[3]), bool(int(words[4])))
    worker.barrier("end", timeout_s=WAIT_S)
    Path(folder, f"{worker.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
