"""A job whose workers are killed all the time, beside one that is left alone: the steps that the kills cost.

Both jobs run at the same time, so what disturbs the machine disturbs both. They train the same model at the same steady
pace (see scripts/soak_churn.py). In one of them a random worker is killed (SIGKILL) at random moments, and
``--max-restarts`` starts it again. Its center must hold every step that a worker counted, and at most one more for each
kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from soak_jobs import TIMEOUT_S, end_of, kill, launch, leftovers, middle, tree

SCRIPT = "soak_churn.py"


class Run:
    """One of the two jobs.

    Parameters
    ----------
    folder : Path
    workers : int
    restarts : int
        How often workers may be started again.
    """

    def __init__(self, folder: Path, workers: int, restarts: int) -> None:
        folder.mkdir()
        self.folder, self.workers = folder, workers
        options = ("--summary", f"{folder}/summary.json", "--max-restarts", str(restarts))
        self.process = launch(str(folder), SCRIPT, workers=workers, options=options)
        self.began = self.reached_s = float("nan")
        self.killed: dict[int, tuple[int, float]] = {}  # ranks that are away: process id, and since when
        self.away_s: list[float] = []

    def pids(self) -> dict[int, int]:
        """Return the ranks that train, with their process ids, and note who is back."""
        found = {}
        for rank in range(self.workers):
            path = self.folder / f"began-{rank}"
            if not path.exists():
                continue
            pid, (killed, since) = int(path.read_text()), self.killed.get(rank, (0, 0.0))
            if pid == killed:
                continue
            if self.killed.pop(rank, None):
                self.away_s.append(time.time() - since)
            found[rank] = pid
        return found

    def look(self) -> None:
        """Note when the target was reached, and who is back."""
        self.pids()
        if self.reached_s != self.reached_s and (self.folder / "reached").exists():
            self.reached_s = time.monotonic() - self.began

    def wait_until_all_train(self) -> bool:
        """Return whether all workers have begun; those that are away are waited for."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.pids()) < self.workers:
            if time.monotonic() > deadline or self.process.poll() is not None:
                return False
            time.sleep(0.005)
        return True

    def kill_one(self, rng: random.Random) -> bool:
        """Kill a worker that trains, at random; returns whether there was one."""
        pids = self.pids()
        if not pids:
            return False
        rank = rng.choice(sorted(pids))
        self.killed[rank] = pids[rank], time.time()
        os.kill(pids[rank], signal.SIGKILL)
        return True

    def finish(self) -> tuple[dict, list[str]]:
        """End the training; returns the summary of the job, and what was wrong."""
        (self.folder / "over").touch()
        output = end_of(self.process)
        path = self.folder / "summary.json"
        if output is None or self.process.returncode or not path.exists():
            return {}, [f"status {self.process.returncode}, or no end within {TIMEOUT_S:g} s: {(output or '')[-2000:]}"]
        return json.loads(path.read_text()), []

    def end(self) -> None:
        """Leave nothing of the job."""
        if self.process.poll() is None:
            kill(tree(self.process.pid))
        self.process.communicate()


def churn(minutes: float, percent: float, workers: int, least: float, seed: int) -> tuple[dict, list[str]]:
    """Run both jobs; returns a summary, and what was wrong.

    Parameters
    ----------
    minutes : float
    percent : float
        Of the workers, how many are killed a minute.
    workers : int
        Of each job.
    least : float
        Of the steps of the job that is left alone, the percentage that must be made.
    seed : int
        Of the moments and of the choice of workers.
    """
    rng, seconds = random.Random(seed), 60 * minutes
    kills = max(1, round(percent / 100 * workers * minutes))
    moments = sorted(rng.uniform(0, seconds) for _ in range(kills))
    there_before, made = leftovers(), 0
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(Path(folder) / "alone", workers, 0), Run(Path(folder) / "killed", workers, 1000 * kills)]
        try:
            if not all(run.wait_until_all_train() for run in runs):
                return {}, [f"no start within {TIMEOUT_S:g} s: {_output(runs)}"]
            for run in runs:
                run.began = time.monotonic()
            end = runs[0].began + seconds
            while (now := time.monotonic()) < end:
                if made < kills and now >= end - seconds + moments[made]:
                    made += runs[1].kill_one(rng)
                for run in runs:
                    run.look()
                time.sleep(0.01)
            (alone, wrong), (killed, more) = runs[0].finish(), runs[1].finish()
        finally:
            for run in runs:
                run.end()
    wrong += more
    if wrong:
        return {}, wrong
    wrong += _judge(killed, workers, made)
    steps = [_steps(summary, workers) for summary in (alone, killed)]
    ratio = 100 * steps[1] / steps[0]
    wrong += [] if ratio >= least else [f"{ratio:.1f} % of the steps were made, not {least:g} %"]
    wrong += [f"left {name}" for name in leftovers() - there_before]
    for run, what in zip(runs, ("left alone", "with kills")):
        wrong += [] if run.reached_s == run.reached_s else [f"the job {what} did not reach the target"]
    away = sorted(runs[1].away_s)
    return {
        "minutes": minutes,
        "workers": workers,
        "killed a minute %": percent,
        "kills": made,
        "steps, left alone": steps[0],
        "steps, with kills": steps[1],
        "made % (goal 95)": ratio,
        "target reached, left alone s": runs[0].reached_s,
        "target reached, with kills s": runs[1].reached_s,
        "away, median s": middle(away),
        "longest away s": max(away, default=float("nan")),
        "restarts": killed["restarts"],
    }, wrong


def _steps(summary: dict, workers: int) -> int:
    return sum(int(summary[f"steps of rank {rank}"]) for rank in range(workers))


def _judge(summary: dict, workers: int, kills: int) -> list[str]:
    steps = _steps(summary, workers)
    wrong = [] if summary["restarts"] == kills else [f"{kills} kills, {summary['restarts']} restarts"]
    if not steps <= summary["lowest"] <= summary["highest"] <= steps + kills:
        wrong.append(f"the center does not add up: {steps} steps, {kills} kills, {summary}")
    return wrong


def _output(runs: list[Run]) -> str:
    for run in runs:
        run.process.send_signal(signal.SIGINT)
    outputs = []
    for run in runs:
        try:
            outputs.append(run.process.communicate(timeout=TIMEOUT_S)[0][-2000:])
        except subprocess.TimeoutExpired:
            outputs.append("(it does not end)")
    return "; ".join(outputs)
