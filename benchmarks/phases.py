"""What `platoon launch --report` costs: steps of 5 ms on two workers with the phase clock, and without it.

Blocks with and without it take turns in one job. The launcher's part, a snapshot a second, is timed by itself.

    python benchmarks/phases.py [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from platoon_base.cli.run_recorder import RunRecorder
from platoon_base.cli.stragglers import StragglerWatch
from platoon_base.controller.outcome import Snapshot
from platoon_base.coordination.phase import Phase
from platoon_base.coordination.roster import Participant
from platoon_base.shm.job_state import JobState

SCRIPT = Path(__file__).parent / "scripts" / "phases_steps.py"
WORKERS = 64
TIMEOUT_S = 600


def snapshots(count: int):
    """Yield snapshots of a job whose workers make steps."""
    job_state = JobState(bytearray(JobState.size_bytes(WORKERS)), WORKERS, create=True)
    participants = [Participant(rank, True, Phase.TRAINING, device="cpu") for rank in range(WORKERS)]
    for number in range(1, count + 1):
        job_state.table["started"], job_state.table["steps"] = 1.0, 100 * number
        job_state.table["phase_seconds"] = number
        job_state.table["phase_counts"] = number
        ranks = range(WORKERS)
        progress, phases = {r: job_state.progress(r) for r in ranks}, {r: job_state.phases(r) for r in ranks}
        yield Snapshot(participants, progress, {"loss": float(number)}, None, float(number), phases=phases)


def main() -> None:
    """Run the job, and time the launcher's part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    blocks, steps = ("4", "50") if parser.parse_args().quick else ("30", "200")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "platoon_base", "launch", "-n", "2", "--log-dir", f"{folder}/logs"]
        words = ["--report", f"{folder}/run.html", str(SCRIPT), blocks, steps]
        ran = subprocess.run([*command, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    print("\n".join(line for line in ran.stdout.splitlines() if "clock" in line or "ratio" in line))
    recorder, watch, spent = RunRecorder(), StragglerWatch(), 0.0
    for number, snapshot in enumerate(snapshots(100)):
        began = time.perf_counter()
        recorder.take(snapshot, recorder.start + number)
        watch.take(snapshot, recorder.start + number)
        spent += time.perf_counter() - began
    print(f"the launcher, each second, {WORKERS} workers: {1e3 * spent / 100:.2f} ms")


if __name__ == "__main__":
    main()
