"""What compression between two hosts saves on slow links, and what it costs in learning. Needs root.

    python benchmarks/hosts_compression.py [--codecs none int8 ...] [--links ...] [--seeds 1 2 3] [--out FOLDER]

Hosts are network namespaces of this machine with a worker each, started by `platoon launch`. Their links are limited by
a token bucket, and a program between the hosts and the switch delays them.

* Rounds of `LocalSGD` with 100 MB of weights: the fastest of those measured, as the machine may have other work; the
  processor time of a courier, which does not depend on that; and the share of the time in training if a step takes
  0.1 s and a round follows each 100, 200 or 500 of them. The bytes are those that the counter of the host's interface
  shows, with all headers.
* The same with `overlap=0.5`, where each round is exchanged while the workers train, for half of 20 s: what
  their synchronization still takes, and what such rules learn beside those that wait.
* Averages of 100 MB of gradients, with the processor time of a worker; and, with ``--only devices``, of tensors on a
  GPU for each host, by NCCL over sockets and by way of the hosts. That needs torch for CUDA and two GPUs.
* A perceptron on handwritten digits, with Adam and a round each 20 mini-batches, on two hosts and, with as many
  workers, on one; and with averaged gradients in each step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import namespaces
import numpy as np
import report

SCRIPT = Path(__file__).parent / "scripts" / "hosts_compression_worker.py"
ROOT = Path(__file__).parents[1]
CODECS = ("none", "float16", "bfloat16", "int8", "int4", "int2", "topk(0.1)", "topk(0.01)")
LINKS = {"100 Mbit/s, 20 ms": ("100mbit", 20.0), "1 Gbit/s": ("1gbit", 0.0), "10 Gbit/s": ("10gbit", 0.0)}
SLOW = [*LINKS][:2]
DEVICE_CODECS = CODECS[:6]
BYTES, STEP_S, ROUNDS, CALLS, AVERAGES, DEVICE_CALLS = 100_000_000, 0.1, 4, 2, 2, 4
STEPS = (100, 200, 500)  # from one round to the next; the goals are for the second
LEARN_STEPS, LEARN_EVERY = 600, 20
OVERLAP = "LocalSGD(overlap=0.5)"
OVERLAPPED_STEPS = 200  # half of them take longer than any exchange
OVERLAP_RULES = ("LocalSGD()", OVERLAP, "DiLoCo(0.7, 0.5)", "DiLoCo(0.7, 0.5, overlap=0.25)")
LIMIT_S = 300
TRAINING_GOAL, LOSS_GOAL, BYTES_GOAL = 0.9, 0.005, 100


def run(
    codec: str,
    words: list,
    hosts: list[namespaces.Host] | None,
    workers: int = 1,
    device: str = "cpu",
    script: Path = SCRIPT,
) -> list[dict]:
    """Run one job; returns what each worker wrote. With ``device="cuda"`` each host has the GPU of its number."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "key")
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "PLATOON_KEY_FILE": str(key), "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        processes = []
        for number, host in enumerate(hosts or [None]):
            where, devices = [], ["-n", workers, "-D", "cpu"] if device == "cpu" else ["-D", f"{device}{number}"]
            if hosts is not None and len(hosts) > 1:
                where = ["--nnodes", len(hosts), "--node-rank", number, "--rdzv-endpoint", hosts[0].address]
                where += ["--hosts-compression", codec]
            command = [sys.executable, "-m", "platoon_base", "launch", *where, *devices, "--log-dir",
                       f"{folder}/logs{number}", script, folder, *words]  # fmt: skip
            words_here = [*(host.enter() if host else []), *map(str, command)]
            environment["NCCL_HOSTID"] = f"host{number}"  # by which NCCL knows that it must send over sockets
            output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(subprocess.Popen(words_here, env=environment, **output))
        try:
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.terminate()
        if any(process.returncode for process in processes):
            sys.exit(f"{codec}, {words} FAILED:\n{''.join(outputs)}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(workers * len(processes))]


def rounds(codec: str, link: str, hosts: list[namespaces.Host], rule: str = "LocalSGD()", steps: int = 10) -> dict:
    """Measure rounds; the first one, in which memory is touched for the first time, does not count."""
    found = run(codec, ["rounds", BYTES, steps, STEP_S, ROUNDS + 1, rule], hosts)
    all_s = [max(each) for each in zip(*(one["rounds_s"] for one in found))][1:]
    cpu_s = min([max(each) for each in zip(*(one["courier_cpu_s"] for one in found))][1:])
    shares = {str(steps): steps * STEP_S / (steps * STEP_S + min(all_s)) for steps in STEPS}
    sent = report.median([sum(each) / len(found) for each in zip(*(one["sent_bytes"] for one in found))][1:])
    row = {"link": link, "codec": codec, "rule": rule, "round_s": min(all_s), "all_s": all_s, "courier_cpu_s": cpu_s,
           "sent_bytes": sent, "training": shares}  # fmt: skip
    print(row, flush=True)
    return row


def averages(codec: str, link: str, hosts: list[namespaces.Host], way: str = "arrays", calls: int = AVERAGES) -> dict:
    """Measure averages of gradients; the first one does not count."""
    device = "cpu" if way == "arrays" else "cuda"
    found = run(codec, ["reduce", BYTES, calls + 1, way], hosts, device=device)
    all_s = [max(each) for each in zip(*(one["calls_s"] for one in found))][1:]
    cpu_s = min([max(each) for each in zip(*(one["cpu_s"] for one in found))][1:])
    sent = report.median([sum(each) / len(found) for each in zip(*(one["sent_bytes"] for one in found))][1:])
    row = {"link": link, "codec": codec, "call_s": min(all_s), "all_s": all_s, "cpu_s": cpu_s, "sent_bytes": sent,
           "way": way}  # fmt: skip
    print(row, flush=True)
    return row


def losses(
    codec: str, seed: int, hosts: list[namespaces.Host] | None, loses: bool = False, rule: str = "LocalSGD()"
) -> dict:
    """Train once; returns the losses of the center at the end."""
    name = f"{codec}, residuals lost" if loses else codec if hosts else "one host"
    found = run(codec, ["learn", rule, LEARN_STEPS, LEARN_EVERY, seed, int(loses)], hosts, 1 if hosts else 2)[0]
    print(name, seed, found, flush=True)
    return {"codec": name, "seed": seed, **found}


def learning(options: argparse.Namespace) -> list[dict]:
    """Train on one host and, with each codec, on two; returns a row for each with its loss over that of one host."""
    with namespaces.Hosts(2) as hosts:
        runs = [losses("none", seed, None) for seed in options.seeds]
        runs += [losses(codec, seed, hosts.all) for codec in options.codecs for seed in options.seeds]
        runs += [losses(codec, seed, hosts.all, True) for codec in options.lost for seed in options.seeds]
    return over_one_host(runs, options.seeds)


def learning_by_gradients(options: argparse.Namespace) -> list[dict]:
    """Train with averaged gradients in each step, on one host and with each codec on two."""
    codecs = [codec for codec in options.codecs if not codec.startswith("topk")]
    with namespaces.Hosts(2) as hosts:
        runs = [losses("none", seed, None, rule="gradients") for seed in options.seeds]
        runs += [losses(codec, seed, hosts.all, rule="gradients") for codec in codecs for seed in options.seeds]
    return over_one_host(runs, options.seeds)


def over_one_host(runs: list[dict], seeds: list[int]) -> list[dict]:
    """Return a row for each codec, with its mean losses and those over the ones of one host."""
    rows = []
    for name in dict.fromkeys(each["codec"] for each in runs):
        row = {"codec": name}
        for kind in ("train", "validation"):
            mean, base = (
                sum(each[kind] for each in runs if each["codec"] == wanted) / len(seeds)
                for wanted in (name, "one host")
            )
            row[kind], row[f"{kind}_over"] = mean, mean / base - 1
            row[f"{kind}_error"] = error_of(runs, name, kind)
        rows.append(row)
    return rows


def error_of(runs: list[dict], name: str, kind: str) -> float:
    """Return the standard error of a loss over that of one host with the same seed; NaN for a single seed."""
    by_seed = {each["seed"]: each[kind] for each in runs if each["codec"] == "one host"}
    ratios = np.array([each[kind] / by_seed[each["seed"]] for each in runs if each["codec"] == name])
    return float(ratios.std(ddof=1) / len(ratios) ** 0.5) if len(ratios) > 1 else math.nan


def show_losses(title: str, rows: list[dict]) -> None:
    """Print the losses of `over_one_host`."""
    headings = ["", "training", "over", "+-", "validation", "over", "+-"]
    kinds = ("train", "validation")
    report.table(title, headings, [
        [row["codec"], *(cell for kind in kinds for cell in (
            row[kind], f"{row[f'{kind}_over']:+.2%}", f"{row[f'{kind}_error']:.2%}"))] for row in rows
    ])  # fmt: skip


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codecs", nargs="+", default=[*CODECS])
    parser.add_argument("--links", nargs="+", default=SLOW, choices=[*LINKS])
    parser.add_argument(
        "--lost", nargs="+", default=["int4", "int2", "topk(0.1)"], help="codecs to lose residuals with"
    )
    parser.add_argument(
        "--only",
        choices=["learning", "rounds", "overlap", "gradients", "devices"],
        help="measure that, and keep the rest of the results",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    options = parser.parse_args()
    problem = namespaces.problem()
    if problem:
        print(f"skipped: {problem}")
        return
    path = options.out / "hosts_compression.json"
    results = json.loads(path.read_text()) if options.only and path.exists() else {}
    results.update({"bytes": BYTES, "step_s": STEP_S, "seeds": options.seeds})
    if options.only in (None, "gradients"):
        results["gradients"], results["learning_by_gradients"] = measured_averages(options)
    if options.only in (None, "learning"):
        results["learning"] = learning(options)
        show_losses("Final loss on the digits, over that of one host", results["learning"])
    if options.only in (None, "rounds"):
        results["rounds"], results["all_reduce"] = measured_rounds(options)
    if options.only in (None, "overlap"):
        results["overlap"], results["learning_by_overlap"] = measured_overlap(options)
    if options.only == "devices":
        results["devices"] = measured_on_devices(options)
    results["goals"] = goals_of(results)
    report.save("hosts_compression", results, options.out)


def measured_rounds(options: argparse.Namespace) -> tuple[list[dict], dict]:
    """Measure rounds on each link, and averages of as many gradients."""
    rows, reduced = [], {}
    for link in options.links:
        rate, delay_ms = LINKS[link]
        with namespaces.Hosts(2, delay_ms / 4) as hosts:  # a frame passes two wires on its way
            hosts.limit(rate)
            for codec in options.codecs:
                rows.append(rounds(codec, link, hosts.all))
            found = run("none", ["reduce", BYTES, CALLS, "arrays"], hosts.all)
            reduced[link] = {"call_s": report.median(found[0]["calls_s"]), "sent_bytes": found[0]["sent_bytes"][-1]}
            print(link, reduced[link], flush=True)
    for row in rows:
        row["fewer_bytes"] = STEPS[1] * reduced[row["link"]]["sent_bytes"] / row["sent_bytes"]
    report.table(
        "Rounds of 100 MB; share of training with a round each 100, 200, 500 steps; fewer bytes than gradients",
        ["link", "codec", "round, s", "courier, CPU s", "MB sent", *map(str, STEPS), "fewer"],
        [[r["link"], r["codec"], r["round_s"], r["courier_cpu_s"], r["sent_bytes"] / 1e6,
          *(f"{share:.0%}" for share in r["training"].values()), r["fewer_bytes"]] for r in rows],
    )  # fmt: skip
    return rows, reduced


def measured_on_devices(options: argparse.Namespace) -> list[dict]:
    """Measure averages of tensors on GPUs: by NCCL over sockets, and copied to the hosts and back."""
    rows = []
    for link in options.links:
        rate, delay_ms = LINKS[link]  # there and back
        with namespaces.Hosts(2, delay_ms / 4) as hosts:
            hosts.limit(rate)
            ways = [(codec, way) for way in ("NCCL", "hosts") for codec in options.codecs if codec in DEVICE_CODECS]
            rows += [averages(codec, link, hosts.all, way, DEVICE_CALLS) for codec, way in ways]
    report.table(
        "Averages of 100 MB on a GPU for each of two hosts",
        ["link", "way", "codec", "MB sent", "average, s", "all, s"],
        [[r["link"], r["way"], r["codec"], r["sent_bytes"] / 1e6, r["call_s"],
          ", ".join(f"{each:.3f}" for each in r["all_s"])] for r in rows],
    )  # fmt: skip
    return rows


def measured_overlap(options: argparse.Namespace) -> tuple[list[dict], list[dict]]:
    """Measure rounds that overlap on each link, and what the rules learn in as many steps, on two hosts."""
    rows = []
    for link in options.links:
        rate, delay_ms = LINKS[link]
        with namespaces.Hosts(2, delay_ms / 4) as hosts:
            hosts.limit(rate)
            rows += [rounds(codec, link, hosts.all, OVERLAP, OVERLAPPED_STEPS) for codec in options.codecs]
    for row in rows:  # in shorter periods an exchange would not be hidden, and its bytes travel between the calls
        row["training"] = {steps: share for steps, share in row["training"].items() if int(steps) >= OVERLAPPED_STEPS}
        del row["sent_bytes"]
    report.table(
        "Rounds of 100 MB that overlap with training; share of training with a round each 200 and 500 steps",
        ["link", "codec", "workers wait, s", "all, s", "200", "500"],
        [[r["link"], r["codec"], r["round_s"], ", ".join(f"{each:.2f}" for each in r["all_s"]),
          *(f"{share:.1%}" for share in r["training"].values())] for r in rows],
    )  # fmt: skip
    with namespaces.Hosts(2) as hosts:
        runs = [{**losses("none", seed, None), "codec": "one host"} for seed in options.seeds]
        runs += [
            {**losses("none", seed, hosts.all, rule=rule), "codec": rule}
            for rule in OVERLAP_RULES
            for seed in options.seeds
        ]
    learned = over_one_host(runs, options.seeds)
    show_losses("Final loss on the digits by each rule, over that of LocalSGD() on one host", learned)
    return rows, learned


def measured_averages(options: argparse.Namespace) -> tuple[list[dict], list[dict]]:
    """Measure averages of gradients on each link, and what training with them learns."""
    rows = []
    for link in options.links:
        rate, delay_ms = LINKS[link]
        with namespaces.Hosts(2, delay_ms / 4) as hosts:
            hosts.limit(rate)
            rows += [averages(codec, link, hosts.all) for codec in options.codecs if not codec.startswith("topk")]
    report.table(
        "Averages of 100 MB of gradients", ["link", "codec", "s", "worker, CPU s", "MB sent"],
        [[r["link"], r["codec"], r["call_s"], r["cpu_s"], r["sent_bytes"] / 1e6] for r in rows],
    )  # fmt: skip
    learned = learning_by_gradients(options)
    show_losses("Final loss on the digits by averaged gradients, over that of one host", learned)
    return rows, learned


def goals_of(results: dict) -> list[dict]:
    """Return whether each codec has reached the goals at 100 Mbit/s."""
    over = {row["codec"]: row["validation_over"] for row in results.get("learning", [])}
    goals = []
    for row in results.get("rounds", []):
        if row["link"].startswith("100"):
            training = row["training"][str(STEPS[1])]
            goals += [
                report.goal(f"{row['codec']}: share of time in training", training, TRAINING_GOAL),
                report.goal(f"{row['codec']}: fewer bytes than gradients", row["fewer_bytes"], BYTES_GOAL),
            ]
            if row["codec"] in over:
                name = f"{row['codec']}: validation loss over one host's"
                goals.append(report.goal(name, over[row["codec"]], LOSS_GOAL, False))
    return goals


if __name__ == "__main__":
    main()
