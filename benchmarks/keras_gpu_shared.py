"""What a synchronization of ResNet-50 (102 MB) costs two workers that share one GPU, by the place of the center.

Jobs of two workers on one CUDA device run one after the other, in several rounds. Each worker changes its weights,
meets the other, and synchronizes; printed are medians over synchronizations, workers and rounds, and ratios to copying
the weights to page-locked memory and back. Run it on a host with a GPU:

    KERAS_BACKEND=torch python benchmarks/keras_gpu_shared.py [--rounds N] [--only RULE] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import report

SCRIPT = Path(__file__).parent / "scripts" / "keras_gpu_shared_train.py"
WORKERS = 2
DEADLINE_S = 120.0
# Rules that wait have their center on the host.
WAYS = [
    ("CenterMomentum", "device"),
    ("EASGD", "device"),
    ("CenterMomentum", "host"),
    ("EASGD", "host"),
    ("DiLoCo", "host"),
]
GOAL_MS = 120.0


def measure(rule: str, center: str) -> list[dict]:
    """Run one job; returns what each worker wrote."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-D", *["cuda0"] * WORKERS, "--center", center]
        done = subprocess.run(
            [*command, "--log-dir", f"{folder}/logs", str(SCRIPT), folder, rule],
            env={"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        if done.returncode:
            logs = [path.read_text()[-3000:] for path in sorted(Path(folder, "logs").glob("rank*.log"))]
            raise SystemExit("\n".join([done.stdout, done.stderr, *logs, f"the job with {rule} on {center} FAILED"]))
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(WORKERS)]


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind  [3]")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    parser.add_argument("--only", help="one rule, such as DiLoCo  [all]")
    args = parser.parse_args()
    ways = [way for way in WAYS if args.only in (None, way[0])]
    found: dict[tuple[str, str], list[dict]] = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way in ways:
            found[way] += measure(*way)
    first = found[ways[0]][0]
    rows = []
    for (rule, center), workers in found.items():
        took = 1e3 * report.median([second for worker in workers for second in worker["sync_s"]])
        copies = 1e3 * report.median([worker["copies_s"] for worker in workers if worker["copies_s"]] or [0.0])
        row = {"rule": rule, "center": center, "ms": took, "copies ms": copies}
        rows.append({**row, "times the copies": took / copies if copies else None})
    title = f"Keras {first['keras']} on {first['backend']}, {WORKERS} workers on one GPU, {first['megabytes']:.0f} MB"
    report.table(title, list(rows[0]), [list(row.values()) for row in rows])
    goals = [
        report.goal(f"{row['rule']}, center on the {row['center']}, ms", row["ms"], GOAL_MS, at_least=False)
        for row in rows
        if row["center"] == "host"
    ]
    results = {"keras": first["keras"], "backend": first["backend"], "results": rows, "goals": goals}
    report.save(f"keras-gpu-shared-{first['backend']}", results, args.out)


if __name__ == "__main__":
    main()
