"""What the exchange between the centers of two hosts costs their workers: steps with couriers over steps without.

Two launchers on this machine are the hosts, with a worker each. A step is a product of matrices of some milliseconds;
every tenth one is followed by a synchronization with the host's center. Jobs whose couriers exchange as often as the
default lets them take turns with jobs whose couriers do so once a day. On a machine with two cores the workers have one
each, so the couriers run in what the workers leave.

    python benchmarks/courier.py [--rounds N] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report

SCRIPT = Path(__file__).parent / "scripts" / "courier_worker.py"
GOAL = 1.01
SIZES = {"10 MB": 2_500_000, "100 MB": 25_000_000}


def job(elements: int, every_s: float) -> list[dict]:
    """Run one job on two hosts; returns what each worker wrote."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        launchers = []
        for host in (0, 1):
            words = ["--nnodes", "2", "--node-rank", str(host), "--rdzv-endpoint", f"127.0.0.1:{port}"]
            command = [sys.executable, "-m", "platoon_base", "launch", *words, "-n", "1", "-D", "cpu"]
            variables = {
                "PLATOON_HOSTS_EVERY_S": str(every_s),
                "PLATOON_KEY_FILE": f"{folder}/key",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            launchers.append(
                subprocess.Popen(
                    [*command, "--log-dir", f"{folder}/logs{host}", str(SCRIPT), folder, str(elements)],
                    env={**os.environ, **variables},
                    stdout=subprocess.DEVNULL,
                )
            )
        if any([launcher.wait(300) for launcher in launchers]):
            raise SystemExit("the job FAILED")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind  [3]")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    args = parser.parse_args()
    rows = []
    for size, elements in SIZES.items():
        ratios, steps, worst = [], [], []
        for _ in range(args.rounds):
            without, with_it = job(elements, 86400.0), job(elements, 0.2)
            ratios += [b["step_ms"] / a["step_ms"] for a, b in zip(without, with_it)]
            steps += [each["step_ms"] for each in with_it]
            worst += [each["worst_sync_ms"] for each in with_it]
        rows.append(
            {
                "center": size,
                "step_ms": statistics.median(steps),
                "over_without": statistics.median(ratios),
                "worst_sync_ms": max(worst),
            }
        )
        print(rows[-1], flush=True)
        told = "reached" if rows[-1]["over_without"] <= GOAL else "MISSED "
        print(
            f"{told}  steps with couriers over steps without, {size}: {rows[-1]['over_without']:.3f} (goal <= {GOAL})"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "courier.json").write_text(json.dumps({"rows": rows, "rounds": args.rounds}, indent=1))


if __name__ == "__main__":
    main()
