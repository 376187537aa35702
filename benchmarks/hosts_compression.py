"""What compression between two hosts saves on slow links, and what it costs in learning. Needs root.

    python benchmarks/hosts_compression.py [--codecs none int8 ...] [--links ...] [--seeds 1 2 3] [--only rounds]

Hosts are network namespaces of this machine with a worker each, started by `platoon launch`. Their links are limited by
a token bucket, and a program between the hosts and the switch delays them. --only chooses what is measured:

rounds     Rounds of `LocalSGD` with 100 MB of weights: the fastest of those measured, as the machine may have other
           work; the processor time of a courier, which does not depend on that; and the share of the time in training
           if a step takes 0.1 s and a round follows each 100, 200 or 500 of them. The bytes are those that the counter
           of the host's interface shows, with all headers.
overlap    The same with `overlap=0.5`, where each round is exchanged while the workers train, for half of 20 s: what
           their synchronization still takes, and what such rules learn beside those that wait.
gradients  Averages of 100 MB of gradients, with the processor time of a worker, and what training with them learns.
devices    The same of tensors on a GPU for each host, by NCCL over sockets and by way of the hosts; never unless asked.
learning   A perceptron on handwritten digits, with Adam and a round each 20 mini-batches, on two hosts and, with as
           many workers, on one.
"""

import json
import os
import time
from pathlib import Path

import harness
import numpy as np

median = harness.median
CODECS = ["none", "float16", "bfloat16", "int8", "int4", "int2", "topk(0.1)", "topk(0.01)"]
LINKS = {"100 Mbit/s, 20 ms": ("100mbit", 20.0), "1 Gbit/s": ("1gbit", 0.0), "10 Gbit/s": ("10gbit", 0.0)}
BYTES, STEP_S, ROUNDS = 100_000_000, 0.1, 4
STEPS = (100, 200, 500)  # from one round to the next; the goals are for the second
LEARN = {"steps": 600, "every": 20}
OVERLAP, OVERLAPPED_STEPS = "LocalSGD(overlap=0.5)", 200  # half of them take longer than any exchange
OVERLAP_RULES = ("LocalSGD()", OVERLAP, "DiLoCo(0.7, 0.5)", "DiLoCo(0.7, 0.5, overlap=0.25)")
WAIT = {"timeout_s": 400}
ROWS = 1437  # of the digits that are trained on; the others validate


# What a worker does.
def sent_bytes():
    """Return what this host has sent over its interface to the others, with all headers."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    return 0


def courier_cpu_s():
    import psutil

    for process in psutil.Process(os.getppid()).children():
        if any("courier" in word for word in process.cmdline()):
            return sum(process.cpu_times()[:2])
    return 0.0


def work_rounds(worker, given):
    from platoon_base import rules

    rule = eval(given.rule, vars(rules))
    completes = int(given.steps * rules.overlap_of(rule))
    x = np.zeros(BYTES // 4, np.float32)
    worker.init_shared_params([x], rule, **WAIT)
    progress = np.random.default_rng(worker.global_rank).standard_normal(x.size).astype(np.float32) * np.float32(1e-3)
    worker.barrier("begin", **WAIT)
    found = {"seconds": [], "sent_bytes": [], "cpu_s": []}
    for _ in range(given.rounds):
        waited = 0.0
        for step in range(given.steps):
            time.sleep(STEP_S)
            worker.progress(steps=1)
            if step + 1 == completes:
                waited = harness.seconds(lambda: worker.advanced.complete_round(**WAIT))
        x += progress
        np.negative(progress, out=progress)
        worker.barrier("trained", **WAIT)  # so that no round waits for a worker that still trains
        before, before_s = sent_bytes(), courier_cpu_s()
        found["seconds"].append(waited + harness.seconds(lambda: worker.sync_params(**WAIT)))
        worker.barrier("met", **WAIT)
        found["sent_bytes"].append(sent_bytes() - before)
        found["cpu_s"].append(courier_cpu_s() - before_s)
    worker.advanced.complete_round(**WAIT)
    worker.barrier("completed", **WAIT)
    return found


def work_averages(worker, given):
    """Average arrays, or tensors on a GPU by NCCL, or by the hosts with page-locked memory."""
    from platoon_base.worker import ErrorFeedback

    x = np.random.default_rng(worker.global_rank).standard_normal(BYTES // 4).astype(np.float32)
    out, how = np.empty_like(x), {"feedback": ErrorFeedback(), **WAIT}
    worker.all_reduce(np.ones(1 << 10, np.float32), **WAIT)
    if given.way != "arrays":
        import torch

        tensor, host = torch.from_numpy(x).cuda(), torch.from_numpy(x).pin_memory()

    def combine():
        if given.way == "arrays":
            worker.all_reduce(x, "mean", out, **how)
            return
        if given.way == "NCCL":
            worker.all_reduce(tensor, "mean", tensor, **how)
        else:
            host.copy_(tensor)
            worker.all_reduce(host.numpy(), "mean", host.numpy(), **how)
            tensor.copy_(host, non_blocking=True)
        torch.cuda.synchronize()

    found = {"seconds": [], "sent_bytes": [], "cpu_s": []}
    for _ in range(given.calls):
        worker.barrier("begin", **WAIT)
        before, cpu_before = sent_bytes(), time.process_time()
        found["seconds"].append(harness.seconds(combine))
        found["cpu_s"].append(time.process_time() - cpu_before)
        worker.barrier("end", **WAIT)
        found["sent_bytes"].append(sent_bytes() - before)
    return found


def forward(params, rows):
    w1, b1, w2, b2, w3, b3 = params
    first = np.maximum(rows @ w1 + b1, 0)
    second = np.maximum(first @ w2 + b2, 0)
    scores = second @ w3 + b3
    scores -= scores.max(axis=1, keepdims=True)
    return first, second, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def gradients(params, rows, labels):
    first, second, logs = forward(params, rows)
    delta = np.exp(logs)
    delta[np.arange(len(labels)), labels] -= 1
    delta /= len(labels)
    back2 = (delta @ params[4].T) * (second > 0)
    back1 = (back2 @ params[2].T) * (first > 0)
    found = [rows.T @ back1, back1.sum(0), first.T @ back2, back2.sum(0), second.T @ delta, delta.sum(0)]
    return [np.ascontiguousarray(each) for each in found]


def loss_of(params, rows, labels):
    return float(-forward(params, rows)[2][np.arange(len(labels)), labels].mean())


class Adam:
    """A perceptron of two hidden layers and Adam, in the memory of the weights."""

    def __init__(self, sizes, rate, random):
        self.params, self._rate, self._steps = [], rate, 0
        for a, b in zip(sizes, sizes[1:]):
            self.params.append((random.standard_normal((a, b)) * np.sqrt(2 / a)).astype(np.float32))
            self.params.append(np.zeros(b, np.float32))
        self._moments = [(np.zeros_like(p), np.zeros_like(p), np.empty_like(p)) for p in self.params]

    def step(self, grads):
        self._steps += 1
        unbiased = np.float32(np.sqrt(1 - 0.999**self._steps))
        rate = np.float32(self._rate / (1 - 0.9**self._steps)) * unbiased
        for p, g, (m, v, room) in zip(self.params, grads, self._moments):
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


def work_train(worker, given):
    """Train with Adam on rows of this worker's own, by averaged gradients or a rule."""
    from sklearn.datasets import load_digits

    from platoon_base import rules
    from platoon_base.worker import FlatAllReduce

    random, digits = np.random.default_rng(given.seed), load_digits()
    order = random.permutation(len(digits.target))
    rows, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    rows, labels, valid, answers = rows[:ROWS], labels[:ROWS], rows[ROWS:], labels[ROWS:]
    adam = Adam([64, 256, 256, 10], 0.001, random)
    params, period = adam.params, given.every
    rule = None if given.method == "gradients" else eval(given.method, vars(rules))
    completes = 0
    if rule is not None:
        completes = int(period * rules.overlap_of(rule))
        worker.init_shared_params(params, rule, **WAIT)
    combine = FlatAllReduce(worker, WAIT["timeout_s"], compress=True)
    own = np.random.default_rng([given.seed, worker.global_rank])
    for step in range(1, given.steps + 1):
        chosen = own.integers(0, len(rows), 16)
        grads = gradients(params, rows[chosen], labels[chosen])
        if rule is None:
            combine(grads, "mean")
        adam.step(grads)
        worker.progress(steps=1)
        if completes and step % period == completes % period:
            worker.advanced.complete_round(**WAIT)
        if rule is not None and step % period == 0:
            worker.sync_params(**WAIT)
    if rule is not None:
        worker.copy_to_local(**WAIT)  # also completes a round that overlaps
    return {"train": loss_of(params, rows, labels), "validation": loss_of(params, valid, answers)}


def work(given):
    from platoon_base import connect

    worker = connect()
    found = globals()[f"work_{given.kind}"](worker, given)
    worker.barrier("end", **WAIT)
    harness.give(worker.global_rank, found)


# The benchmark.
def run(kind, codec, hosts, workers=1, device="cpu", **values):
    """Run one job of a kind; with ``device="cuda"`` each host has the GPU of its number."""
    hosts = hosts or [None]
    devices = [device if device == "cpu" else f"{device}{i}" for i in range(workers * len(hosts))]
    words = ["--hosts-compression", codec] if len(hosts) > 1 else []
    how = {"devices": devices, "hosts": hosts, "words": words, "env": {"OPENBLAS_NUM_THREADS": "1"}, "limit_s": 300}
    return harness.job(__file__, {"kind": kind, **values}, **how)


def on_links(options, rows_of):
    """Return the rows of a function of a link's name and its hosts, for all links."""
    import namespaces

    rows = []
    for link in options.links:
        rate, delay_ms = LINKS[link]
        with namespaces.Hosts(2, delay_ms / 4) as hosts:  # a frame passes two wires on its way
            hosts.limit(rate)
            for row in rows_of(hosts.all):
                rows.append({"link": link, **row})
                print(rows[-1], flush=True)
    return rows


def summed(found):
    """Return what rounds or averages took; the first one, in which memory is touched first, does not count."""
    slowest = {name: [max(each) for each in zip(*(one[name] for one in found))][1:] for name in ("seconds", "cpu_s")}
    sent = [sum(each) / len(found) for each in zip(*(one["sent_bytes"] for one in found))][1:]
    about = {"s": min(slowest["seconds"]), "CPU s": min(slowest["cpu_s"]), "MB sent": median(sent) / 1e6}
    return {**about, "all_s": slowest["seconds"]}


def rounds(codec, hosts, rule="LocalSGD()", steps=10, shown=STEPS):
    row = summed(run("rounds", codec, hosts, steps=steps, rounds=ROUNDS + 1, rule=rule))
    shares = {f"training, {n}": n * STEP_S / (n * STEP_S + row["s"]) for n in shown}
    return {"codec": codec, "rule": rule, **row, **shares}


def averages(codec, hosts, way="arrays", calls=2):
    found = run("averages", codec, hosts, device="cpu" if way == "arrays" else "cuda", calls=calls + 1, way=way)
    return {"way": way, "codec": codec, **summed(found)}


def losses(name, codec, seed, hosts, method="LocalSGD()"):
    values = {**LEARN, "method": method, "seed": seed}
    found = run("train", codec, hosts, 1 if hosts else 2, **values)[0]
    print(name, seed, found, flush=True)
    return {"codec": name, "seed": seed, **found}


def learned(title, options, arms):
    """Train on one host and by each arm (name, codec, options of `losses`) on two; print and return the table."""
    import namespaces

    rows = []
    with namespaces.Hosts(2) as hosts:
        first = {key: value for key, value in arms[0][2].items() if key == "method" and value == "gradients"}
        arms = [("one host", "none", None, first), *((name, codec, hosts.all, how) for name, codec, how in arms)]
        runs = {(name, seed): losses(name, codec, seed, at, **how)
                for name, codec, at, how in arms for seed in options.seeds}  # fmt: skip
    for name, *_ in arms:
        row = {"": name}
        for kind in ("train", "validation"):
            of, base = ([runs[each, seed][kind] for seed in options.seeds] for each in (name, "one host"))
            ratios = np.array(of) / np.array(base)
            row[kind] = float(np.mean(of))
            row[f"{kind} over"] = row[kind] / float(np.mean(base)) - 1
            row[f"+- {kind}"] = float(ratios.std(ddof=1) / len(ratios) ** 0.5) if len(ratios) > 1 else None
        rows.append(row)
    harness.table(title, rows)
    return rows


def measure_learning(options):
    arms = [(codec, codec, {}) for codec in options.codecs]
    return {"learning": learned("Final loss on the digits, over that of one host", options, arms)}


def measure_rounds(options):
    rows = on_links(options, lambda hosts: (rounds(codec, hosts) for codec in options.codecs))
    reduced = on_links(options, lambda hosts: [averages("none", hosts)])
    sent = {row["link"]: row["MB sent"] for row in reduced}
    for row in rows:
        row["times fewer MB than gradients"] = STEPS[1] * sent[row["link"]] / row["MB sent"]
    harness.table("Rounds of 100 MB; share of training with a round each 100, 200, 500 steps", rows, 200)
    return {"rounds": rows, "all_reduce": reduced}


def measure_overlap(options):
    def rows_of(hosts):
        # In shorter periods an exchange would not be hidden, and its bytes travel between the calls.
        return (rounds(codec, hosts, OVERLAP, OVERLAPPED_STEPS, STEPS[1:]) for codec in options.codecs)

    rows = on_links(options, rows_of)
    harness.table("Rounds of 100 MB that overlap with training: what the workers wait", rows, 200)
    title = "Final loss on the digits by each rule, over that of LocalSGD() on one host"
    arms = [(rule, "none", {"method": rule}) for rule in OVERLAP_RULES]
    return {"overlap": rows, "learning_by_overlap": learned(title, options, arms)}


def measure_gradients(options):
    codecs = [codec for codec in options.codecs if not codec.startswith("topk")]
    rows = on_links(options, lambda hosts: (averages(codec, hosts) for codec in codecs))
    harness.table("Averages of 100 MB of gradients", rows)
    title = "Final loss on the digits by averaged gradients, over that of one host"
    arms = [(codec, codec, {"method": "gradients"}) for codec in codecs]
    return {"gradients": rows, "learning_by_gradients": learned(title, options, arms)}


def measure_devices(options):
    ways = [(codec, way) for way in ("NCCL", "hosts") for codec in options.codecs if codec in CODECS[:6]]
    rows = on_links(options, lambda hosts: (averages(codec, hosts, way, 4) for codec, way in ways))
    harness.table("Averages of 100 MB on a GPU for each of two hosts", rows)
    return {"devices": rows}


def measure():
    import namespaces

    kinds = ("gradients", "learning", "rounds", "overlap")
    options = harness.options(__doc__, codecs=CODECS, links=[], only=None, seeds=[1, 2, 3])
    if namespaces.problem():
        print(f"skipped: {namespaces.problem()}")
        return
    path = (options.out or harness.FOLDER) / "hosts_compression.json"
    options.links = options.links or [*LINKS][:2]
    results = json.loads(path.read_text()) if options.only and path.exists() else {}  # the rest is kept
    results.update({"bytes": BYTES, "step_s": STEP_S, "seeds": options.seeds})
    for kind in [options.only] if options.only else kinds:
        results |= globals()[f"measure_{kind}"](options)
    over = {row[""]: row["validation over"] for row in results.get("learning", []) if "validation over" in row}
    for row in results.get("rounds", []):
        if row["link"].startswith("100") and f"training, {STEPS[1]}" in row:
            codec, fewer = row["codec"], row["times fewer MB than gradients"]
            harness.goal(f"{codec}: share of time in training", row[f"training, {STEPS[1]}"], 0.9)
            harness.goal(f"{codec}: times fewer bytes than gradients", fewer, 100)
            if codec in over:
                harness.goal(f"{codec}: validation loss over one host's", over[codec], 0.005, at_least=False)
    harness.save("hosts_compression", {key: results[key] for key in results if key != "machine"}, options)


if __name__ == "__main__":
    harness.main(measure, work)
