"""Kill workers at random moments, over and over, and look for hangs, leaks and a center that does not add up.

    python benchmarks/soak.py [--kills 200] [--minutes M] [--seed S] [--out FOLDER]

Jobs of 4 workers, of which three are killed (SIGKILL) at moments that follow from the seed: in the middle of an update,
with a stripe locked, in a collective call, or between. The last one must go on, end by itself, and find a center in
which every element counts the steps that were made (see scripts/soak_worker.py); the job must end with the status of a
killed worker, and leave no shared memory, folder or process. Prints a table, and exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import report

from platoon_base import registry

SCRIPT = Path(__file__).parent / "scripts" / "soak_worker.py"
WORKERS = 4
TIMEOUT_S = 60.0
KILLED = 137


def run(seed: int) -> tuple[dict, list[str]]:
    """Run one job; returns what its last worker found, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-n", str(WORKERS), "--log-dir", f"{folder}/logs"]
        there_before, began = leftovers(), time.monotonic()
        process = subprocess.Popen(
            [*command, str(SCRIPT), folder, str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _kill_tree(process.pid)
            return {}, [f"no end within {TIMEOUT_S:g} s"]
        path = Path(folder) / "result.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        wrong = [] if process.returncode == KILLED else [f"status {process.returncode}"]
        wrong += judge(found) if found else [f"no result: {output[-500:]}"]
        wrong += [f"left {name}" for name in leftovers() - there_before]
        return {**found, "seconds": time.monotonic() - began}, wrong


def judge(found: dict) -> list[str]:
    """Tell what is wrong with a center: see scripts/soak_worker.py."""
    wrong = []
    if not found["whole"]:
        wrong.append("an element of the center is no whole number")
    if not found["finished_steps"] <= found["lowest"] <= found["highest"] <= found["finished_steps"] + found["kills"]:
        wrong.append(f"the center does not add up: {found}")
    if found["kills"] != WORKERS - 1:
        wrong.append(f"{found['kills']} workers were killed")
    return wrong


def leftovers() -> set[str]:
    """Name what jobs that are over have left, and processes of ours that are still there."""
    left = {f"{leftover.path}" for leftover in registry.leftovers()}
    return left | {f"process {child.pid}" for child in psutil.Process().children(recursive=True)}


def _kill_tree(pid: int) -> None:
    for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many workers to kill at least")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on for so long, whatever the kills")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; each later one has the next")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results")
    options = parser.parse_args()
    os.environ["PLATOON_TIMEOUT_S"] = "20"
    end = time.monotonic() + 60 * options.minutes
    jobs, wrong, kills, seed = [], [], 0, options.seed
    while kills < options.kills or time.monotonic() < end:
        found, complaints = run(seed)
        jobs.append(found)
        wrong += [f"seed {seed}: {complaint}" for complaint in complaints]
        kills += found.get("kills", WORKERS - 1)
        seed += 1
    noticed = sorted(found["noticed_s"] for found in jobs if found)
    unfinished = sum(int(found["highest"] - found["finished_steps"]) for found in jobs if found)
    summary = {
        "jobs": len(jobs),
        "kills": kills,
        "wrong": len(wrong),
        "updates cut short": unfinished,
        "noticed, median s": noticed[len(noticed) // 2] if noticed else float("nan"),
        "noticed, latest s": noticed[-1] if noticed else float("nan"),
        "longest job s": max((found["seconds"] for found in jobs if found), default=float("nan")),
    }
    report.table("Kills at random moments", list(summary), [list(summary.values())])
    print("\n".join(wrong))
    report.save("soak", {"summary": summary, "wrong": wrong, "seed": options.seed}, options.out)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
