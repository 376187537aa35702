"""The price of the original's API: the LSTM of its example by its calls, against the same by this package's own calls.

    python benchmarks/original_api.py                  # two workers on the CPU
    python benchmarks/original_api.py --devices cuda0 cuda1 --units 1024 --vocabulary 10000

A controller of the original's kind starts the workers, scripts/lstm_original_worker.py. It listens at a TCP port, so
requests are encrypted. Each worker trains windows of the same mini-batches by both APIs in turn, the first of a pair
being now the one, now the other. Windows are short and many: what else the machine does falls on both alike. Told are
the medians of the windows, and the median of the ratios of pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path

import report

from platoon_base.platoon_api.channel import Controller

EXPERIMENT = Path(__file__).parent / "scripts" / "lstm_original"
SLOWEST = 0.98  # of the rate by this package's own calls


class LSTMController(Controller):
    """Says train, and counts."""

    batches = 0

    def handle_control(self, req, worker_id, req_info):
        if req == "done":
            self.batches += req_info["train_len"]
            return ""
        return "train"


def free_port() -> int:
    """Return a port that nobody listens at."""
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def measure(options: argparse.Namespace) -> list[dict]:
    """Run one job; returns what its workers wrote."""
    os.environ["THEANO_FLAGS"] = ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), "floatX=float32"]))
    root = str(EXPERIMENT.parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    names = ("repeats", "rounds", "requests", "vocabulary", "units")
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--folder={folder}", *(f"--{name}={getattr(options, name)}" for name in names)]
        controller = LSTMController(
            free_port(),
            devices=options.devices,
            experiment_name=str(EXPERIMENT),
            log_directory=folder,
            worker_args=words,
        )
        status = controller.serve()
        if status:
            for path in sorted(Path(folder).glob("rank*.log")):
                print(f"--- {path.name}\n{path.read_text()[-3000:]}")
            raise SystemExit(f"the job ended with status {status}")
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]


def main(options: argparse.Namespace) -> dict:
    """Measure, print, save; returns the results."""
    workers = measure(options)
    batches = 10 * options.rounds
    seconds = {api: [row["seconds"] for w in workers for row in w["rows"] if row["api"] == api] for api in APIS}
    pairs = []
    for worker in workers:
        for repeat in range(options.repeats):
            old, new = (
                next(r["seconds"] for r in worker["rows"] if (r["repeat"], r["api"]) == (repeat, api)) for api in APIS
            )
            pairs.append(new / old)
    rates = {api: batches / report.median(found) for api, found in seconds.items()}
    ratio, request_us = report.median(pairs), report.median([worker["request_us"] for worker in workers])
    rows = [[APIS[api], rates[api], batches / max(seconds[api]), batches / min(seconds[api])] for api in APIS]
    title = f"{len(workers)} workers on {' '.join(options.devices)}, {len(pairs)} pairs of {batches} mini-batches"
    report.table(title, ["API", "mini-batches/s of a worker", "slowest", "fastest"], rows)
    print(f"one request of the original's API: {request_us:.0f} us")
    goal = report.goal("rate by the original's API over that by this package's own, median of pairs", ratio, SLOWEST)
    options_used = {key: value for key, value in vars(options).items() if key != "out"}
    results = {"options": options_used, "rates": rates, "ratios": pairs, "request_us": request_us, "goal": goal}
    report.save("original_api", results, options.out)
    return results


APIS = {"original": "the original's", "handle": "this package's own"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=["cpu", "cpu"])
    parser.add_argument("--repeats", type=int, default=250, help="pairs of windows")
    parser.add_argument("--rounds", type=int, default=1, help="synchronizations in a window, ten mini-batches each")
    parser.add_argument("--requests", type=int, default=2000, help="to time one")
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for original_api.json")
    main(parser.parse_args())
