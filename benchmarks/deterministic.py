"""What `--deterministic` costs: steps per second of a loop of NumPy with the option, over those without.

    python benchmarks/deterministic.py [--quick] [--out FOLDER]

Two workers on the CPU make steps of some ms and exchange 4 MB every 4 steps: by a rule that does not wait, without
turns, and by rank; by rounds; with averaged gradients at each step.
Runs with and without the option take turns, so that other jobs on the machine slow down both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import report

SCRIPT = Path(__file__).parent / "scripts" / "deterministic_train.py"
RULES = ["EASGD(alpha=0.4)", "LocalSGD()", "gradients"]
WAY = "--deterministic"


def rate(folder: Path, rule: str, way: str, steps: int) -> float:
    """Run one job; return the steps per second of all workers together."""
    options = ["-n", "2", "--log-dir", str(folder / "logs"), *filter(None, [way])]
    command = [sys.executable, "-m", "platoon_base", "launch", *options, str(SCRIPT), rule, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    found = [json.loads((folder / "logs" / f"rank{rank}.log").read_text().splitlines()[-1]) for rank in range(2)]
    return float(sum(found))


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks, unless --quick]")
    args = parser.parse_args()
    steps, repeats = (8, 1) if args.quick else (200, 5)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for rule in RULES:
            runs: dict[str, list[float]] = {way: [] for way in ["", WAY]}
            for _ in range(repeats):
                for way, rates in runs.items():
                    rates.append(rate(Path(name), rule, way, steps))
            share = report.median([own / other for own, other in zip(runs[WAY], runs[""])])
            rows.append({"rule": rule, "way": WAY, "share": share, "with": runs[WAY], "without": runs[""]})
            print(f"{rule} {WAY}: {share:.2f} of the steps/s without ({report.median(runs['']):.0f})")
    if args.out or not args.quick:
        report.save("deterministic", {"results": rows}, args.out or report.FOLDER)


if __name__ == "__main__":
    main()
