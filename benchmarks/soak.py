"""Kill workers, controllers and whole jobs at random moments, and look for hangs, leaks and a center that is wrong.

    python benchmarks/soak.py [--kills 200] [--minutes M] [--churn M] [--percent 30] [--seed S] [--out FOLDER]

Three kinds of jobs take turns; what happens when follows from the seed.

* Workers: of 4 workers three are killed (SIGKILL), in the middle of an update, with a stripe locked, in a collective
  call, or between. The last one must go on, end by itself, and find a center in which every element counts the steps
  that were made; the job must end with the status of a killed worker.
* Synchronous: of 4 workers that combine arrays in each step one is killed. All others must be told so: its rank, its
  device, how it ended and its log.
* Jobs: a job of 3 workers that writes a checkpoint every 50 ms is ended again and again, by SIGKILL of all its
  processes (a power cut but for the disk), SIGKILL of its controller (the workers must end by themselves and tidy up),
  or SIGTERM. Each time it is resumed: the center that it begins with must hold all the steps that are not to be done
  again. At last it runs to its end.

With --churn M a fourth kind comes first, for M minutes: --percent of a job's workers are killed each minute, and
started again. It must make --least percent of the steps of a job beside it that is left alone, and reach the same
target. Its center must hold every step that a worker counted, and at most one more for each kill.

With --stalls N jobs on 2 and on 3 hosts come first, with half of N stalls of 1 to 8 s each: a courier, a launcher or a
worker is stopped, or as root one direction of all connections to a courier is cut. Afterwards the center must hold each
step exactly once.

No shared memory, folder or process may be left. Prints tables, and exits with 1 if anything was wrong.
"""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import harness
import numpy as np
import psutil

from platoon_base.job import files as job_files
from platoon_base.shm.segments import SHM_FOLDER, Segment, abandoned
from platoon_base.system.environment import MAX_WORKERS, NAMESPACE

KILLED, TIMEOUT_S, WORKERS = 137, 60.0, 4
JOB_WORKERS, JOB_STEPS, JOB_KILLS, JOB_LATEST_S = 3, 2000, 5, 0.6
ENDINGS = {"whole job": "whole job killed", "controller": "controller killed", "SIGTERM": "ended by SIGTERM"}
SHAPES = ((200_003,), (300, 500), (7,))  # several stripes
LATEST_S = 0.4  # of a kill, after all have begun
NEVER = float("nan")


# What the workers do.
def counting(worker):
    """Return zeros to count steps with; by ASGD every element of the center counts the steps of all workers."""
    from platoon_base import ASGD

    params = [np.zeros(shape) for shape in SHAPES]
    worker.init_shared_params(params, ASGD())
    return params


def count(params):
    for param in params:
        param += 1


def counted(params):
    center = np.concatenate([param.ravel() for param in params])
    whole = bool((center == np.round(center)).all())  # false for anything that is not finite
    return {"lowest": float(center.min()), "highest": float(center.max()), "whole": whole}


def work_workers(given, worker):
    from platoon_base.shm.job_state import JobState

    params, killed, noticed = counting(worker), {}, {}
    pids = dict(worker.gather([worker.global_rank, os.getpid()]))

    def kill_all():
        rng, ranks = random.Random(given.seed), [rank for rank in pids if rank]
        rng.shuffle(ranks)
        for rank in ranks:
            time.sleep(rng.uniform(0, LATEST_S))
            killed[rank] = time.monotonic()
            os.kill(pids[rank], signal.SIGKILL)

    if worker.global_rank == 0:
        threading.Thread(target=kill_all, daemon=True).start()
    present = list(range(worker.global_size))
    while present != [0]:
        for _ in range(10):
            count(params)
            worker.sync_params()
            worker.progress(steps=1)
        worker.reduce_metrics({"first": (float(params[0][0]), 1.0)})
        left = worker.advanced.meet("all who are left")
        noticed |= dict.fromkeys(set(present) - set(left), time.monotonic())
        present = left
    worker.copy_to_local()
    with Segment.attach(job_files.JobFiles.read(os.environ["PLATOON_JOB"]).job_state) as segment:
        job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=False)
        steps = sum(job_state.progress(rank).steps for rank in pids)
    found = {"kills": len(killed), "finished_steps": steps, **counted(params)}
    harness.give(0, {**found, "noticed_s": max(noticed[rank] - killed[rank] for rank in killed)})


def work_synchronous(given, worker):
    """Combine an array with the others over and over; one is killed at a random moment, and the others write down."""
    from platoon_base.errors import WorkerLostError

    rank, size, rng = worker.global_rank, worker.global_size, random.Random(given.seed)
    victim, moment, elements = rng.randrange(size), rng.uniform(0, LATEST_S), rng.choice([3, 5_000, 300_000])
    pids = dict(worker.gather([rank, os.getpid()]))

    def kill_later():
        time.sleep(moment)
        (given.folder / "killed").write_text(str(time.monotonic()))
        os.kill(pids[victim], signal.SIGKILL)

    if rank == (victim + 1) % size:
        threading.Thread(target=kill_later, daemon=True).start()
    array = np.ones(elements, "float32")
    try:
        while True:
            assert (worker.all_reduce(array) == size).all()
    except WorkerLostError as error:
        harness.give(rank, {"at": time.monotonic(), "text": str(error), "victim": victim})


def work_jobs(given, worker):
    """Count steps to a number of them, and write down with which center each resumed job begins."""
    params, kept = counting(worker), Path(given.kept)
    start = worker.resume_at.steps
    total = worker.advanced.sum_pairs("starts", {"steps": (float(start), 1.0)})[0]["steps"][0]
    if worker.global_rank == 0:  # the others wait below
        with open(kept / "found.jsonl", "a") as file:
            file.write(json.dumps({"positions": total, **counted(params)}) + "\n")
    worker.barrier("looked")
    (given.folder / f"running-{worker.global_rank}").touch()
    for _ in range(start, given.steps):
        count(params)
        worker.progress(steps=1)
        worker.sync_params()
        if worker.should_stop:
            return
    worker.advanced.meet("end")
    worker.copy_to_local()
    worker.report({"center": float(params[0].min())})


def work_churn(given, worker, step_s=0.02, features=50, rows=32, target=0.05):
    """Train a linear model at a steady pace, as a device does: a worker that is away loses steps that none makes."""
    from platoon_base import ASGD

    rank, solution = worker.global_rank, np.random.default_rng(0).standard_normal(features)
    model, steps_of_all = np.zeros(features), np.zeros(SHAPES[0])
    worker.init_shared_params([model, steps_of_all], ASGD())
    step, began = worker.resume_at.steps, given.folder / f"began-{rank}"
    harness.write(began, os.getpid())
    deadline = time.monotonic()
    while not ((given.folder / "over").exists() or worker.should_stop):
        rng = np.random.default_rng([rank, step])  # a step that is done again sees the same rows
        x = rng.standard_normal((rows, features))
        y = x @ solution + 0.1 * rng.standard_normal(rows)
        model -= 0.002 * x.T @ (x @ model - y) / rows
        steps_of_all += 1
        step += 1
        worker.progress(steps=1)
        worker.sync_params()
        if np.linalg.norm(model - solution) <= target * np.linalg.norm(solution):
            (given.folder / "reached").touch()
        deadline = max(deadline + step_s, time.monotonic() - step_s)  # what a pause has cost is not caught up with
        time.sleep(max(0.0, deadline - time.monotonic()))
    worker.advanced.meet("over")
    worker.copy_to_local()
    ends = {"lowest": float(steps_of_all.min()), "highest": float(steps_of_all.max())}
    worker.report({f"steps of rank {rank}": step, **ends})


def work_stalls(given, worker):
    """Count steps on several hosts until told; then the center must have the mean of the hosts' steps."""
    from platoon_base import ASGD

    x, steps = np.zeros(2000), 0
    worker.init_shared_params([x], ASGD())
    worker.barrier("all share")
    (given.folder / f"began-{worker.global_rank}").touch()
    while not worker.should_stop and not (given.folder / "end").exists():
        x += 1
        steps += 1
        worker.progress(steps=1)
        worker.sync_params()
        time.sleep(0.02)
    worker.sync_params()
    total = sum(worker.gather(steps))
    worker.average_hosts()
    worker.copy_to_local()
    harness.give(worker.global_rank, [float(x[0]), total / given.hosts])


def work(given):
    from platoon_base import connect

    globals()[f"work_{given.kind}"](given, connect())


# Processes, and what they leave.
def launch(kind, values=None, words=(), workers=WORKERS, **how):
    values, words = {"kind": kind, **(values or {})}, [*words]
    return harness.Job(__file__, values, devices=["cpu"] * workers, words=words, **how)


def end_of(job):
    """Wait for a launcher and return its status; None, and nothing is left of it, if it does not end."""
    (process,) = job.processes
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        kill(tree(process.pid))
        return None


def output_of(job):
    return (job.folder / "output0.log").read_text()[-2000:]


def tree(pid):
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def kill(processes):
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def leftovers():
    left = {f"{leftover.path}" for leftover in job_files.leftovers()}
    return left | {f"process {child.pid}" for child in psutil.Process().children(recursive=True)}


def remove_leftovers():
    """Remove what the jobs that were killed as a whole have left; returns what cannot be explained by that."""
    prefix, deadline = job_files.segment_prefix().strip("/"), time.monotonic() + 15
    # What is young may be of a job that is just starting.
    while time.monotonic() < deadline and any(abandoned(path.name) for path in SHM_FOLDER.glob(f"{prefix}*")):
        for leftover in job_files.leftovers():
            job_files.remove(leftover)
        time.sleep(0.2)
    return [f"left {name}" for name in leftovers()]


def middle(values):
    return sorted(values)[len(values) // 2] if values else NEVER


def until(holds, job=None, timeout_s=TIMEOUT_S, pause_s=0.005):
    """Wait until something holds; returns whether it does, and not the job's end or the time's came first."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline or (job and job.processes[0].poll() is not None):
            return False
        time.sleep(pause_s)
    return True


# The kinds of jobs: each returns what was seen, and what was wrong.
def run_workers(seed):
    before, began = leftovers(), time.monotonic()
    with launch("workers", {"seed": seed}) as job:
        status, found = end_of(job), job.answers()
        wrong = [] if status == KILLED else [f"status {status}"]
        if not found:
            return {}, [*wrong, f"no result: {output_of(job)}"]
    (found,) = found
    steps, kills = found["finished_steps"], found["kills"]
    if not (found["whole"] and steps <= found["lowest"] <= found["highest"] <= steps + kills):
        wrong.append(f"the center does not add up: {found}")
    wrong += [] if kills == WORKERS - 1 else [f"{kills} workers were killed"]
    wrong += [f"left {name}" for name in leftovers() - before]
    return {**found, "seconds": time.monotonic() - began}, wrong


def summary_workers(jobs):
    found, kills = [job for job in jobs if job], sum(job.get("kills", WORKERS - 1) for job in jobs)
    return {
        "kills": kills,
        "updates cut short": sum(int(job["highest"] - job["finished_steps"]) for job in found),
        "noticed, median s": middle([job["noticed_s"] for job in found]),
        "latest (goal 1)": max((job["noticed_s"] for job in found), default=NEVER),
        "longest job s": max((job["seconds"] for job in found), default=NEVER),
    }


def run_synchronous(seed):
    with launch("synchronous", {"seed": seed}) as job:
        status, told = end_of(job), job.answers()
        if status is None or not (job.folder / "killed").exists():
            return {}, [f"no end within {TIMEOUT_S:g} s, or no begin: {output_of(job)}"]
        killed = float((job.folder / "killed").read_text())
    wrong = [] if status == KILLED else [f"status {status}"]
    wrong += [] if len(told) == WORKERS - 1 else [f"{len(told)} workers were told"]
    for each in told:
        victim = each["victim"]
        for part in (f"rank {victim} is lost (cpu, killed by SIGKILL, see ", f"/logs0/rank{victim}.log"):
            wrong += [] if part in each["text"] else [f"not told {part!r}: {each['text']}"]
    return {"told s": [each["at"] - killed for each in told]}, wrong


def summary_synchronous(jobs):
    told = [seconds for seen in jobs for seconds in seen.get("told s", [])]
    return {"kills": len(jobs), "told, median s": middle(told), "latest (goal 5)": max(told, default=NEVER)}


def run_jobs(seed):
    rng, wrong, total = random.Random(seed), [], JOB_STEPS * JOB_WORKERS
    seen = {ending: 0 for ending in ENDINGS} | {"orphans ended s": [], "done twice": []}
    with tempfile.TemporaryDirectory() as kept:
        words = ["--checkpoint-every", 0.05, "--resume", f"{kept}/kept", "--summary", f"{kept}/summary.json"]
        values = {"steps": JOB_STEPS, "kept": kept}
        for number in range(JOB_KILLS + 1):
            with launch("jobs", values, words, JOB_WORKERS) as job:
                if number == JOB_KILLS:
                    status = end_of(job)
                    wrong += [] if status == 0 else [f"did not run to its end: {output_of(job)}"]
                    break
                ending = rng.choice(list(ENDINGS))
                running = [job.folder / f"running-{rank}" for rank in range(JOB_WORKERS)]
                if until(lambda r=running: all(path.exists() for path in r), job):
                    time.sleep(rng.uniform(0, JOB_LATEST_S))
                if job.processes[0].poll() is None:
                    seen[ending] += 1
                    wrong += end_job(job, ending, seen)
        if status == 0:
            center = json.loads(Path(kept, "summary.json").read_text())["center"]
            seen["done twice"].append(int(center) - total)
            wrong += [f"the center ends at {center}, of {total} steps"] if center < total else []
        before = 0.0
        for line in Path(kept, "found.jsonl").read_text().splitlines():
            begun = json.loads(line)
            if not begun["whole"] or max(begun["positions"], before) > begun["lowest"]:
                wrong.append(f"steps were lost, or no whole number is there: {begun}, after {before}")
            before = begun["positions"]
    return seen, wrong + remove_leftovers()


def end_job(job, ending, seen):
    (process,) = job.processes
    everybody = tree(process.pid)
    if ending == "SIGTERM":
        process.terminate()
        return [] if end_of(job) is not None else ["no end after SIGTERM"]
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


def summary_jobs(jobs):
    orphans = [seconds for seen in jobs for seconds in seen["orphans ended s"]]
    return {
        **{name: sum(seen[ending] for seen in jobs) for ending, name in ENDINGS.items()},
        "orphans ended, median s": middle(orphans),
        "latest (goal 3)": max(orphans, default=NEVER),
        "steps done twice, median of a job": middle([steps for seen in jobs for steps in seen["done twice"]]),
    }


class Churned:
    def __init__(self, workers, restarts):
        self.summary = Path(tempfile.mkdtemp(), "summary.json")
        words = ["--summary", self.summary, "--max-restarts", restarts]
        self.job, self.workers = launch("churn", words=words, workers=workers), workers
        self.began = self.reached_s = NEVER
        self.killed, self.away_s = {}, []  # ranks that are away: process id, and since when

    def pids(self):
        found = {}
        for rank in range(self.workers):
            path = self.job.folder / f"began-{rank}"
            pid = int(path.read_text()) if path.exists() else None
            killed, since = self.killed.get(rank, (None, 0.0))
            if pid == killed:
                continue
            if self.killed.pop(rank, None):
                self.away_s.append(time.time() - since)
            found[rank] = pid
        return found

    def look(self):
        self.pids()
        if self.reached_s != self.reached_s and (self.job.folder / "reached").exists():
            self.reached_s = time.monotonic() - self.began

    def kill_one(self, rng):
        pids = self.pids()
        if pids:
            rank = rng.choice(sorted(pids))
            self.killed[rank] = pids[rank], time.time()
            os.kill(pids[rank], signal.SIGKILL)
        return bool(pids)

    def finish(self):
        (self.job.folder / "over").touch()
        if end_of(self.job) != 0 or not self.summary.exists():
            return {}, [f"no end, or not a good one: {output_of(self.job)}"]
        found = json.loads(self.summary.read_text())
        return {**found, "steps": sum(int(found[f"steps of rank {rank}"]) for rank in range(self.workers))}, []


def churn(options):
    rng, seconds, workers = random.Random(options.seed), 60 * options.churn, WORKERS
    kills = max(1, round(options.percent / 100 * workers * options.churn))
    moments, before, made = sorted(rng.uniform(0, seconds) for _ in range(kills)), leftovers(), 0
    runs = [Churned(workers, 0), Churned(workers, 1000 * kills)]
    with runs[0].job, runs[1].job:
        for run in runs:
            if not until(lambda r=run: len(r.pids()) == workers, run.job):
                return {}, [f"no start within {TIMEOUT_S:g} s: {output_of(run.job)}"]
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
    wrong += more
    if wrong:
        return {}, wrong
    steps, percent = killed["steps"], 100 * killed["steps"] / alone["steps"]
    wrong = [] if killed["restarts"] == made else [f"{made} kills, {killed['restarts']} restarts"]
    if not steps <= killed["lowest"] <= killed["highest"] <= steps + made:
        wrong.append(f"the center does not add up: {made} kills, {killed}")
    wrong += [] if percent >= options.least else [f"{percent:.1f} % of the steps were made, not {options.least:g} %"]
    wrong += [f"left {name}" for name in leftovers() - before]
    wrong += [f"a job did not reach the target after {run.away_s}" for run in runs if run.reached_s != run.reached_s]
    found = {"minutes": options.churn, "workers": workers, "killed a minute %": options.percent, "kills": made}
    found |= {"steps, left alone": alone["steps"], "steps, with kills": steps, "made % (goal 95)": percent}
    for run, what in zip(runs, ("left alone", "with kills")):
        found[f"target reached, {what} s"] = run.reached_s
    away = runs[1].away_s
    found |= {"away, median s": middle(away), "longest away s": max(away, default=NEVER)}
    return {**found, "restarts": killed["restarts"]}, wrong


def cut(courier, seconds):
    ports = {each.laddr.port for each in courier.net_connections("tcp") if each.raddr}
    rules = [["INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP"] for port in ports]
    try:
        for rule in rules:
            subprocess.check_call(["iptables", "-I", *rule])
        time.sleep(seconds)
    finally:
        for rule in rules:
            subprocess.call(["iptables", "-D", *rule], stderr=subprocess.DEVNULL)


def stalls(number, hosts, seed, longest_s=8.0):
    """Stall something so often; the center's steps and those of all workers by hosts are equal if all went well."""
    chance, stalled_s = random.Random(seed), 0.0
    kinds = ["courier", "launcher", "worker"]
    kinds += ["cut"] if os.geteuid() == 0 and shutil.which("iptables") else []
    first, worker = chance.randrange(len(kinds)), f"platoon: {Path(__file__).name}"
    with launch("stalls", {"hosts": hosts}, workers=hosts, hosts=[None] * hosts) as job:
        if not until(lambda: (job.folder / "began-0").exists(), timeout_s=120):
            raise job.failure("to start")
        launchers = [psutil.Process(each.pid) for each in job.processes]
        try:
            for each in range(number):
                time.sleep(chance.random())
                kind = kinds[(first + each) % len(kinds)]
                name = worker if kind == "worker" else "platoon_base.courier.process"
                children = [child for launcher in launchers for child in launcher.children()]
                named = [child for child in children if name in " ".join(child.cmdline())]
                process = chance.choice(launchers if kind == "launcher" else named)
                # A launcher that is silent for --host-timeout (10 s) is lost.
                seconds = chance.uniform(1.0, min(longest_s, 5.0) if kind == "launcher" else longest_s)
                stalled_s += seconds
                if kind == "cut":
                    cut(process, seconds)
                else:
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(seconds)
                    process.send_signal(signal.SIGCONT)
        finally:
            (job.folder / "end").touch()
            statuses = [launcher.wait(120) for launcher in job.processes]
        center, steps = job.answers()[-1] if job.answers() else (NEVER, NEVER)
    right = not any(statuses) and abs(center - steps) <= 1e-9 * steps
    found = {"hosts": hosts, "stalls": number, "stalled_s": round(stalled_s, 1), "statuses": statuses}
    return {**found, "center": center, "steps": steps, "right": right}


TURNS = ("workers", "workers", "synchronous", "workers", "synchronous", "jobs")


def measure():
    whole = {"kills": 200, "seed": 0, "stalls": 0}
    options = harness.options(__doc__, **whole, minutes=0.0, churn=0.0, percent=30.0, least=95.0)
    os.environ[NAMESPACE] = f"s{os.getpid()}"  # it tidies up: only what is its own
    os.environ["PLATOON_TIMEOUT_S"] = "20"
    kinds = ("workers", "synchronous", "jobs")
    found, wrong, summaries = {kind: [] for kind in kinds}, {kind: [] for kind in kinds}, {}
    end, churned = time.monotonic() + 60 * options.minutes, {}
    if options.churn > 0:
        churned, wrong["churn"] = churn(options)
    stalled = [stalls(options.stalls // 2, hosts, options.seed) for hosts in (2, 3) if options.stalls]
    wrong["stalls"] = [str(each) for each in stalled if not each["right"]]
    seed, kills = options.seed, 0
    while kills < options.kills or time.monotonic() < end:
        kind = TURNS[seed % len(TURNS)]
        seen, complaints = globals()[f"run_{kind}"](seed)
        found[kind].append(seen)
        wrong[kind] += [f"seed {seed}: {complaint}" for complaint in complaints]
        kills += seen.get("kills", 0)
        seed += 1
    for kind, jobs in found.items():
        summary = globals()[f"summary_{kind}"](jobs)
        summaries |= {kind: {"jobs": len(jobs), "wrong": len(wrong[kind]), **summary}} if jobs else {}
    if options.churn > 0:
        summaries["churn"] = {**churned, "wrong": len(wrong["churn"])}
    if stalled:
        harness.table("Stalls between hosts", stalled)
    for kind, summary in summaries.items():
        harness.table(f"{kind}: killed at random moments", [summary])
    killed = [s.get("kills", 0) + sum(s.get(ending, 0) for ending in ENDINGS.values()) for s in summaries.values()]
    print(f"{sum(killed)} kills in all")
    print("\n".join(complaint for complaints in wrong.values() for complaint in complaints))
    results = {"summary": summaries, "stalls": stalled, "wrong": wrong, "kills in all": sum(killed)}
    harness.save("soak", {**results, "seed": options.seed}, options)
    return int(any(wrong.values()))


if __name__ == "__main__":
    harness.main(measure, work)
