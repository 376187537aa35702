"""What compression between two hosts saves on slow links, and what it costs in learning. Needs root.

    python benchmarks/hosts_compression.py [--codecs none int8 ...] [--links ...] [--seeds 1 2 3] [--out FOLDER]

Hosts are network namespaces of this machine with a worker each, started by `platoon launch`. Their links are limited by
a token bucket, and a program between the hosts and the switch delays them.

* Rounds of `LocalSGD` with 100 MB of weights. A step takes a fixed time, as on a device of its own; a round follows
  each 100 of them. The bytes are those that the counter of the host's interface shows, with all headers.
* A perceptron on handwritten digits, with Adam and a round each 20 mini-batches, on two hosts and, with as many
  workers, on one.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import namespaces
import report

SCRIPT = Path(__file__).parent / "scripts" / "hosts_compression_worker.py"
ROOT = Path(__file__).parents[1]
CODECS = ("none", "float16", "bfloat16", "int8", "int4", "topk(0.1)", "topk(0.01)")
LINKS = {"100 Mbit/s, 20 ms": ("100mbit", 20.0), "1 Gbit/s": ("1gbit", 0.0)}  # there and back
BYTES, STEPS, STEP_S, ROUNDS, CALLS = 100_000_000, 100, 0.1, 3, 2
LEARN_STEPS, LEARN_EVERY = 600, 20
LIMIT_S = 300
TRAINING_GOAL, LOSS_GOAL, BYTES_GOAL = 0.9, 0.005, 100


def run(codec: str, words: list, hosts: list[namespaces.Host] | None, workers: int = 1) -> list[dict]:
    """Run one job; returns what each worker wrote."""
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
            where = []
            if host is not None:
                where = ["--nnodes", len(hosts), "--node-rank", number, "--rdzv-endpoint", hosts[0].address]
                where += ["--hosts-compression", codec]
            command = [sys.executable, "-m", "platoon_base", "launch", *where, "-n", workers, "-D", "cpu",
                       "--log-dir", f"{folder}/logs{number}", SCRIPT, folder, *words]  # fmt: skip
            words_here = [*(host.enter() if host else []), *map(str, command)]
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


def rounds(codec: str, link: str, hosts: list[namespaces.Host]) -> dict:
    """Measure rounds; the first one, in which memory is touched for the first time, does not count."""
    found = run(codec, ["rounds", BYTES, STEPS, STEP_S, ROUNDS + 1], hosts)
    round_s = report.median([max(each) for each in zip(*(one["rounds_s"] for one in found))][1:])
    training_s = report.median([max(each) for each in zip(*(one["training_s"] for one in found))][1:])
    sent = report.median([sum(each) / len(found) for each in zip(*(one["sent_bytes"] for one in found))][1:])
    row = {"link": link, "codec": codec, "round_s": round_s, "sent_bytes": sent,
           "training": training_s / (training_s + round_s)}  # fmt: skip
    print(row, flush=True)
    return row


def losses(codec: str, seed: int, hosts: list[namespaces.Host] | None) -> dict:
    """Train once; returns the losses of the center at the end."""
    name = codec if hosts else "one host"
    found = run(codec, ["learn", "LocalSGD()", LEARN_STEPS, LEARN_EVERY, seed], hosts, 1 if hosts else 2)[0]
    print(name, seed, found, flush=True)
    return {"codec": name, "seed": seed, **found}


def learning(options: argparse.Namespace) -> list[dict]:
    """Train on one host and, with each codec, on two; returns a row for each with its loss over that of one host."""
    with namespaces.Hosts(2) as hosts:
        runs = [losses("none", seed, None) for seed in options.seeds]
        runs += [losses(codec, seed, hosts.all) for codec in options.codecs for seed in options.seeds]
    rows = []
    for name in ("one host", *options.codecs):
        row = {"codec": name}
        for kind in ("train", "validation"):
            mean, base = (
                sum(each[kind] for each in runs if each["codec"] == wanted) / len(options.seeds)
                for wanted in (name, "one host")
            )
            row[kind], row[f"{kind}_over"] = mean, mean / base - 1
        rows.append(row)
    return rows


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codecs", nargs="+", default=[*CODECS])
    parser.add_argument("--links", nargs="+", default=[*LINKS], choices=[*LINKS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    options = parser.parse_args()
    problem = namespaces.problem()
    if problem:
        print(f"skipped: {problem}")
        return
    learned = learning(options)
    rows, reduced = [], {}
    for link in options.links:
        rate, delay_ms = LINKS[link]
        with namespaces.Hosts(2, delay_ms / 4) as hosts:  # a frame passes two wires on its way
            hosts.limit(rate)
            for codec in options.codecs:
                rows.append(rounds(codec, link, hosts.all))
            found = run("none", ["reduce", BYTES, CALLS], hosts.all)
            reduced[link] = {"call_s": report.median(found[0]["calls_s"]), "sent_bytes": found[0]["sent_bytes"][-1]}
            print(link, reduced[link], flush=True)
    for row in rows:
        row["fewer_bytes"] = STEPS * reduced[row["link"]]["sent_bytes"] / row["sent_bytes"]
    report.table(
        "Rounds of 100 MB, one each 100 steps of 0.1 s", ["link", "codec", "round, s", "MB sent", "training", "fewer"],
        [[r["link"], r["codec"], r["round_s"], r["sent_bytes"] / 1e6, r["training"], r["fewer_bytes"]] for r in rows],
    )  # fmt: skip
    report.table(
        "Final loss on the digits, over that of one host", ["", "training", "", "validation", ""],
        [[r["codec"], r["train"], f"{r['train_over']:+.2%}", r["validation"], f"{r['validation_over']:+.2%}"]
         for r in learned],
    )  # fmt: skip
    over = {row["codec"]: row["validation_over"] for row in learned}
    goals = []
    for row in rows:
        if row["link"].startswith("100"):
            goals += [
                report.goal(f"{row['codec']}: share of time in training", row["training"], TRAINING_GOAL),
                report.goal(f"{row['codec']}: loss over one host's", over[row["codec"]], LOSS_GOAL, False),
                report.goal(f"{row['codec']}: fewer bytes than gradients", row["fewer_bytes"], BYTES_GOAL),
            ]
    about = {"bytes": BYTES, "steps": STEPS, "step_s": STEP_S, "seeds": options.seeds}
    results = {**about, "rounds": rows, "all_reduce": reduced, "learning": learned, "goals": goals}
    report.save("hosts_compression", results, options.out)


if __name__ == "__main__":
    main()
