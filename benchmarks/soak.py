"""Kill workers, controllers and whole jobs at random moments, and look for hangs, leaks and a center that is wrong.

    python benchmarks/soak.py [--kills 200] [--minutes M] [--churn M] [--percent 30] [--seed S] [--out FOLDER]

Three kinds of jobs take turns; what happens when follows from the seed.

* Workers: of 4 workers three are killed (SIGKILL), in the middle of an update, with a stripe locked, in a collective
  call, or between. The last one must go on, end by itself, and find a center in which every element counts the steps
  that were made (see scripts/soak_worker.py); the job must end with the status of a killed worker.
* Synchronous: of 4 workers that combine arrays in each step one is killed. All others must be told so: its rank, its
  device, how it ended and its log (see scripts/soak_sync.py).
* Jobs: a job of 3 workers that writes a checkpoint every 50 ms is ended again and again, by SIGKILL of all its
  processes (a power cut but for the disk), SIGKILL of its controller (the workers must end by themselves and tidy up),
  or SIGTERM. Each time it is resumed: the center that it begins with must hold all the steps that are not to be done
  again (see scripts/soak_job.py). At last it runs to its end.

With ``--churn M`` a fourth kind comes first, for M minutes: of a job's workers so many percent are killed each minute,
and started again. It must make 95 % of the steps of a job beside it that is left alone, and reach the same target (see
churn.py). ``--churn 30 --kills 500`` is the long run: half an hour of that, and then 500 kills.

With ``--stalls N`` jobs on 2 and on 3 hosts come first, with half of N stalls of 1 to 8 s each (see soak_stalls.py):
afterwards the center must hold each step exactly once.

No shared memory, folder or process may be left. Prints tables, and exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import report
from churn import churn
from soak_jobs import TIMEOUT_S, end_of, kill, launch, leftovers, middle, tree
from soak_stalls import stalls

from platoon_base.job import files as job_files
from platoon_base.shm.segments import SHM_FOLDER, abandoned
from platoon_base.system.environment import NAMESPACE

KILLED = 137

WORKERS = 4

JOB_WORKERS = 3
JOB_STEPS = 2000
JOB_KILLS = 5
LATEST_S = 0.6  # after all workers have begun
ENDINGS = {"whole job": "whole job killed", "controller": "controller killed", "SIGTERM": "ended by SIGTERM"}


# Workers that are killed.


def kill_workers(seed: int) -> tuple[dict, list[str]]:
    """Run one job whose workers are killed; returns what its last worker found, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        there_before, began = leftovers(), time.monotonic()
        process = launch(folder, "soak_worker.py", seed, workers=WORKERS)
        output = end_of(process)
        if output is None:
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


def summary_of_workers(jobs: list[dict], wrong: int) -> dict:
    noticed = sorted(found["noticed_s"] for found in jobs if found)
    unfinished = sum(int(found["highest"] - found["finished_steps"]) for found in jobs if found)
    return {
        "jobs": len(jobs),
        "kills": sum(found.get("kills", WORKERS - 1) for found in jobs),
        "wrong": wrong,
        "updates cut short": unfinished,
        "noticed, median s": middle(noticed),
        "latest (goal 1)": max(noticed, default=float("nan")),
        "longest job s": max((found["seconds"] for found in jobs if found), default=float("nan")),
    }


# Workers of synchronous training that are killed.


def kill_synchronous(seed: int) -> tuple[dict, list[str]]:
    """Run one job of synchronous training; returns how long the others took to be told, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        process = launch(folder, "soak_sync.py", seed, workers=WORKERS)
        output = end_of(process)
        told = [json.loads(path.read_text()) for path in Path(folder).glob("told-*.json")]
        if output is None or not (Path(folder) / "killed").exists():
            return {}, [f"no end within {TIMEOUT_S:g} s, or no begin: {output}"]
        killed = float((Path(folder) / "killed").read_text())
        wrong = [] if process.returncode == KILLED else [f"status {process.returncode}"]
        wrong += [] if len(told) == WORKERS - 1 else [f"{len(told)} workers were told"]
        for worker in told:
            victim = worker["victim"]
            for part in (f"rank {victim} is lost (cpu, killed by SIGKILL, see ", f"/logs/rank{victim}.log"):
                wrong += [] if part in worker["text"] else [f"not told {part!r}: {worker['text']}"]
        return {"told s": [worker["at"] - killed for worker in told]}, wrong


def summary_of_synchronous(jobs: list[dict], wrong: int) -> dict:
    told = sorted(seconds for seen in jobs for seconds in seen.get("told s", []))
    return {
        "jobs": len(jobs),
        "kills": len(jobs),
        "wrong": wrong,
        "told, median s": middle(told),
        "latest (goal 5)": max(told, default=float("nan")),
    }


# Jobs that are ended and resumed.


def resume_jobs(seed: int) -> tuple[dict, list[str]]:
    """Run one job that is ended several times; returns what was seen, and what was wrong."""
    rng = random.Random(seed)
    seen: dict = {ending: 0 for ending in ENDINGS} | {"orphans ended s": [], "done twice": []}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        kept, total = Path(folder) / "kept", JOB_STEPS * JOB_WORKERS
        options = ("--checkpoint-every", "0.05", "--resume", str(kept), "--summary", f"{folder}/summary.json")
        for _ in range(JOB_KILLS):
            ending = rng.choice(list(ENDINGS))
            process = launch(folder, "soak_job.py", JOB_STEPS, workers=JOB_WORKERS, options=options)
            if wait_for_start(process, Path(folder)):
                time.sleep(rng.uniform(0, LATEST_S))
            if process.poll() is None:
                seen[ending] += 1
                wrong += end_job(process, ending, seen)
            process.communicate()
        process = launch(folder, "soak_job.py", JOB_STEPS, workers=JOB_WORKERS, options=options)
        output = end_of(process)
        if output is None or process.returncode:
            wrong.append(f"did not run to its end: {output}")
        else:
            center = json.loads((Path(folder) / "summary.json").read_text())["center"]
            seen["done twice"].append(int(center) - total)
            wrong += [f"the center ends at {center}, of {total} steps"] if center < total else []
        wrong += judge_resumed([json.loads(line) for line in (Path(folder) / "found.jsonl").read_text().splitlines()])
    return seen, wrong + remove_leftovers()


def wait_for_start(process: subprocess.Popen, folder: Path) -> bool:
    """Wait until all workers have begun; returns whether they have."""
    running = [folder / f"running-{rank}" for rank in range(JOB_WORKERS)]
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if all(path.exists() for path in running):
            for path in running:
                path.unlink()
            return True
        time.sleep(0.005)
    return False


def end_job(process: subprocess.Popen, ending: str, seen: dict) -> list[str]:
    """End a job; returns what was wrong with its end."""
    everybody = tree(process.pid)
    if ending == "SIGTERM":
        process.terminate()
        return [] if end_of(process) is not None else ["no end after SIGTERM"]
    if ending == "whole job":
        kill(everybody)
        psutil.wait_procs(everybody, TIMEOUT_S)
        return []
    ends = [os.pidfd_open(orphan.pid) for orphan in everybody[1:]]  # init may take a second to bury them
    process.kill()
    began, alive = time.monotonic(), set(ends)
    while alive and time.monotonic() - began < TIMEOUT_S:
        alive -= set(select.select(list(alive), [], [], 1.0)[0])
    seen["orphans ended s"].append(time.monotonic() - began)
    for end in ends:
        os.close(end)
    kill(everybody)
    return [f"{len(alive)} workers did not end after their controller"] if alive else []


def judge_resumed(found: list[dict]) -> list[str]:
    """Tell what is wrong with the centers that the job began with, one after the other."""
    wrong, before = [], 0.0
    for begun in found:
        if not begun["whole"]:
            wrong.append(f"an element of a resumed center is no whole number: {begun}")
        if not max(begun["positions"], before) <= begun["lowest"]:
            wrong.append(f"steps were lost: {begun}, after {before}")
        before = begun["positions"]
    return wrong


def summary_of_jobs(jobs: list[dict], wrong: int) -> dict:
    orphans = sorted(seconds for seen in jobs for seconds in seen["orphans ended s"])
    return {
        "jobs": len(jobs),
        **{name: sum(seen[ending] for seen in jobs) for ending, name in ENDINGS.items()},
        "wrong": wrong,
        "orphans ended, median s": middle(orphans),
        "latest (goal 3)": max(orphans, default=float("nan")),
        "steps done twice, median of a job": middle(sorted(steps for seen in jobs for steps in seen["done twice"])),
    }


def names_of_ours() -> list[str]:
    return [path.name for path in SHM_FOLDER.glob(f"{job_files.segment_prefix().strip('/')}*")]


def remove_leftovers() -> list[str]:
    """Remove what the jobs that were killed as a whole have left; returns what cannot be explained by that."""
    deadline = time.monotonic() + 15  # what is young may be of a job that is just starting
    while time.monotonic() < deadline and any(map(abandoned, names_of_ours())):
        for leftover in job_files.leftovers():
            job_files.remove(leftover)
        time.sleep(0.2)
    return [f"left {name}" for name in leftovers()]


class Kind(NamedTuple):
    """What is done to a kind of jobs, and how it is summed up."""

    title: str
    run: Callable[[int], tuple[dict, list[str]]]
    summary: Callable[[list[dict], int], dict]


KINDS = {
    "workers": Kind("Workers killed", kill_workers, summary_of_workers),
    "synchronous": Kind("Workers of synchronous training killed", kill_synchronous, summary_of_synchronous),
    "jobs": Kind("Jobs ended and resumed", resume_jobs, summary_of_jobs),
}
TURNS = ("workers", "workers", "synchronous", "workers", "synchronous", "jobs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many workers to kill at least")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on for so long, whatever the kills")
    parser.add_argument("--churn", type=float, default=0.0, help="minutes of a job whose workers are killed on and on")
    parser.add_argument("--percent", type=float, default=30.0, help="of its workers, how many are killed each minute")
    parser.add_argument("--least", type=float, default=95.0, help="percentage of the steps that it must make")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; each later one has the next")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results")
    parser.add_argument("--stalls", type=int, default=0, help="how often to stall a job on several hosts")
    os.environ[NAMESPACE] = f"s{os.getpid()}"  # it tidies up: only what is its own
    options = parser.parse_args()
    os.environ["PLATOON_TIMEOUT_S"] = "20"
    end = time.monotonic() + 60 * options.minutes
    found: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    wrong: dict[str, list[str]] = {kind: [] for kind in KINDS}
    churned = {}
    if options.churn > 0:
        churned, wrong["churn"] = churn(options.churn, options.percent, WORKERS, options.least, options.seed)
    stalled = [stalls(options.stalls // 2, hosts, options.seed) for hosts in (2, 3) if options.stalls]
    wrong["stalls"] = [str(each) for each in stalled if not each["right"]]
    seed, kills = options.seed, 0
    while kills < options.kills or time.monotonic() < end:
        kind = TURNS[seed % len(TURNS)]
        seen, complaints = KINDS[kind].run(seed)
        found[kind].append(seen)
        wrong[kind] += [f"seed {seed}: {complaint}" for complaint in complaints]
        kills += seen.get("kills", 0)
        seed += 1
    summaries = {kind: KINDS[kind].summary(jobs, len(wrong[kind])) for kind, jobs in found.items() if jobs}
    titles = {kind: KINDS[kind].title for kind in summaries}
    if options.churn > 0:
        summaries["churn"], titles["churn"] = (
            {**churned, "wrong": len(wrong["churn"])},
            "Workers killed again and again",
        )
    for each in stalled:
        report.table("Stalls between hosts", list(each), [list(each.values())])
    for kind, summary in summaries.items():
        report.table(titles[kind], list(summary), [list(summary.values())])
    in_all = sum(map(killed_by, summaries.values()))
    print(f"{in_all} kills in all")
    print("\n".join(complaint for complaints in wrong.values() for complaint in complaints))
    results = {"summary": summaries, "stalls": stalled, "wrong": wrong, "kills in all": in_all, "seed": options.seed}
    report.save("soak", results, options.out)
    return int(any(wrong.values()))


def killed_by(summary: dict) -> int:
    """Count what a kind of jobs has killed: workers, or the endings of jobs."""
    return summary.get("kills", 0) + sum(summary.get(ending, 0) for ending in ENDINGS.values())


if __name__ == "__main__":
    raise SystemExit(main())
