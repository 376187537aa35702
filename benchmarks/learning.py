"""How soon N workers learn what one process learns: steps per worker and seconds to targets, on real data.

    KERAS_BACKEND=torch python benchmarks/learning.py --task fashion-mnist [--jobs 8] [--quick] [--out FOLDER]
    python benchmarks/learning.py --framework lasagne --task stdlib-lstm

Tasks, targets and methods are the tables in learning_tasks.py. Plain training comes first, with each learning rate; the
best one, by the steps to the hardest target, is kept for all methods, multiplied by what a method documents. Every run
makes as many passes over the data. Each worker has one thread of the CPU, or with --device cuda a GPU: worker i has GPU
i modulo their number.

All rows are validated on after each pass over the data, which takes a worker 1/N of the steps. So the steps to a target
are interpolated between the validation that reaches it and the one before. Medians are over the seeds, and a run that
never reached the target is the longest of all. Steps per worker hold on any machine; seconds if one run is made at a
time, with as many idle cores or GPUs as there are workers, or with --jobs 0: as many side by side as there are GPUs.

--slow R runs each method a second time, in which rank R takes twice as long for each mini-batch. Where workers do not
wait for one another it makes half the mini-batches of an epoch. Where they wait, each step takes twice as long. So
"fast steps" tell the time in steps that a fast worker makes by itself.

Results are written after each run. A run that fails is kept as such, and the others go on; the exit status is 1 then.
Keras's environments have no matplotlib; --plot FILE draws the curves of a file of results with a Python that has it.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import util
from pathlib import Path
from typing import NamedTuple

import harness
from keras_fit import backend
from learning_tasks import METHODS, PLAIN, PLAIN_AVERAGE, TASKS, DataMissing

from platoon_base.devices.discovery import cuda_devices

SCRIPTS = harness.ROOT / "benchmarks" / "scripts"
WORKERS, SEEDS, QUICK_EPOCHS = [2, 4], [1, 2, 3, 4, 5], 8


class Arm(NamedTuple):
    """What runs that differ in their seeds alone have in common; ``slow`` is the rank that was slowed."""

    method: str
    workers: int
    rate: float
    slow: int | None = None

    @classmethod
    def of(cls, run: dict) -> Arm:
        return cls(*(run[name] for name in cls._fields))


def first_reach(points, target, lower=False):
    """Return steps and seconds to a target, interpolated between two validations; None if it was never reached."""
    before = None
    for steps, seconds, value in points:
        if value <= target if lower else value >= target:
            if before is None:
                return {"steps": steps, "seconds": seconds}
            part = (target - before[2]) / (value - before[2])
            between = [a + part * (b - a) for a, b in zip(before, (steps, seconds))]
            return {"steps": between[0], "seconds": between[1]}
        before = steps, seconds, value
    return None


def median_to(runs, target, unit="steps"):
    """Return the median over runs, in which never is longest; None if that is the median."""
    reaches = [run["to_target"][target] for run in runs]
    median = harness.median(math.inf if reach is None else reach[unit] for reach in reaches)
    return None if math.isinf(median) else median


def best_rate(runs, targets, lower=False):
    """Return the rate of plain training with the fewest steps to the last target, else to the one before, or the best.

    The targets become harder from one to the next.
    """
    by_rate = {}
    for run in runs:
        if run["method"] == PLAIN and run["curve"]:
            by_rate.setdefault(run["rate"], []).append(run)
    if not by_rate:
        raise SystemExit(f"{runs[-1]['failed']}\nplain training FAILED with every learning rate")

    def order(rate):
        steps = [median_to(by_rate[rate], f"{target:g}") for target in reversed(targets)]
        best = harness.median(run["best"] for run in by_rate[rate])
        return (*(math.inf if each is None else each for each in steps), best if lower else -best)

    return min(by_rate, key=order)


def summarize(runs, targets, rate):
    arms, rows = {}, []
    for run in runs:
        arms.setdefault(Arm.of(run), []).append(run)
    plain = arms.get(Arm(PLAIN, 1, rate), [])
    for arm, group in arms.items():
        finished = [run for run in group if run["curve"]]
        row = {**arm._asdict(), "seeds": len(group), "failed": len(group) - len(finished)}
        row["seconds_hold"] = all(run["seconds_hold"] for run in [*group, *plain])
        row["to_target"] = {f"{target:g}": to_target(group, plain, f"{target:g}") for target in targets}
        for target, found in row["to_target"].items():
            if arm.slow is not None:
                # A method that waits makes a step in the time in which a fast worker alone would make two.
                factor, others = 2 if METHODS[arm.method].waits else 1, arms.get(arm._replace(slow=None), [])
                steps, before = found["steps"], median_to(others, target) if others else None
                found["fast_steps"] = None if steps is None else factor * steps
                found["share_of_speedup"] = before / (factor * steps) if before and steps else None
        for name in ("best", "final", "bytes_sent"):
            values = [run[name] for run in finished]
            row[name] = harness.median(values) if values else None
            row[f"{name}_range"] = [min(values), max(values)] if values else None
        rows.append(row)
    return rows


def to_target(group, plain, target):
    reaches = [run["to_target"][target] for run in group if run["to_target"][target] is not None]
    found = {"reached": len(reaches)}
    for unit in ("steps", "seconds"):
        values, median = [reach[unit] for reach in reaches], median_to(group, target, unit)
        alone = median_to(plain, target, unit) if plain else None
        found |= {unit: median, f"{unit}_range": [min(values), max(values)] if values else None}
        found[f"times_fewer_{unit}"] = alone / median if alone and median else None
    return found


def show(results):
    last, rows = f"{results['targets'][-1]:g}", []
    for row in results["results"]:
        found, seeds = row["to_target"][last], row["seeds"]
        cells = {"method": row["method"], "workers": row["workers"], "rate": row["rate"], "slow": row["slow"]}
        for target, each in row["to_target"].items():
            median = "never" if each["steps"] is None else f"{each['steps']:.0f}"
            if seeds > 1 and each["reached"]:
                low, high = each["steps_range"]
                missing = "" if each["reached"] == seeds else f"; {seeds - each['reached']} of {seeds} never"
                median += f" ({low:.0f} to {high:.0f}{missing})"
            cells[f"steps to {target}"] = median
        cells["x fewer steps"] = found["times_fewer_steps"]
        for name in ("seconds", "times_fewer_seconds"):
            cells[f"{name} to {last}"] = found[name] if row["seconds_hold"] else None
        cells |= {name: row[name] and f"{row[name]:.4f}" for name in ("best", "final")}
        cells |= {"MB sent": row["bytes_sent"] and row["bytes_sent"] / 1e6, "failed": row["failed"]}
        if row["slow"] is not None:
            cells |= {name: found[name] for name in ("fast_steps", "share_of_speedup")}
        rows.append(cells)
    options = results["options"]
    title = f"{options['task']}, {results['framework']}, {options['epochs']} epochs, seeds {options['seeds']}"
    harness.table(f"{title}; medians (ranges)", rows, width=220)


def median_curve(runs, arm):
    curves = [run["curve"] for run in runs if Arm.of(run) == arm and run["curve"]]
    medians = [[harness.median(point[i] for point in points) for points in zip(*curves)] for i in (0, 2)]
    return medians[0], medians[1]


def draw(results, path):
    lines = {}
    for row in results["results"]:
        if row["method"] != PLAIN or row["rate"] == results["best_rate"]:
            arm = Arm.of(row)
            lines[f"{arm.method}, {arm.workers}{'' if arm.slow is None else ', one slow'}"] = arm
    lines = {label: median_curve(results["runs"], arm) for label, arm in lines.items()}
    harness.plot(path, {"": lines}, xlabel="steps per worker", ylabel=results["value"])


class Study:
    def __init__(self, options):
        self.options, self.task, self.rate = options, TASKS[options.task], None
        self._order, self._slots, self._jobs = [], queue.SimpleQueue(), set()
        self._gpus = cuda_devices().names if options.device == "cuda" else []
        self.runs = []

    @property
    def name(self):
        framework, task = self.options.framework, self.options.task
        return f"learning-{task}" + ("" if framework == self.task.frameworks[0] else f"-{framework}")

    def about(self):
        framework = "Lasagne" if self.options.framework == "lasagne" else f"Keras on {backend()}"
        names = ("task", "epochs", "device")
        return {"framework": framework, **{name: getattr(self.options, name) for name in names}}

    def run(self):
        options = self.options
        alone = [name for name in (PLAIN, PLAIN_AVERAGE) if name == PLAIN or name in options.methods]
        self._measure([Arm(name, 1, rate) for name in alone for rate in options.rates])
        self.rate = best_rate(self.runs, self.task.targets, self.task.lower)
        print(f"plain training does best with the learning rate {self.rate:g}", flush=True)
        if len(options.rates) > 2 and self.rate in (min(options.rates), max(options.rates)):
            print("WARNING: no rate beyond it was tried: plain may do better still; pass more with --rates", flush=True)
        slow = [None] if options.slow is None else [None, options.slow]
        together = [name for name in options.methods if name not in alone]
        for count in options.workers:
            rates = {name: self.rate * METHODS[name].scale(count) for name in together}
            self._measure([Arm(name, count, rates[name], rank) for name in together for rank in slow])

    def _at_once(self, workers):
        return self.options.jobs or max(1, len(self._gpus) // workers)

    def _measure(self, arms):
        wanted = [(arm, seed) for arm in arms for seed in self.options.seeds]
        self._order += wanted
        jobs = self._at_once(max((arm.workers for arm in arms), default=1))
        self._slots = queue.SimpleQueue()
        for slot in range(jobs):
            self._slots.put(slot)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                futures = {pool.submit(self._job, *key): key for key in wanted}
                for future in as_completed(futures):
                    self._keep(*futures[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for job in list(self._jobs):
                    job.__exit__()
                raise
        self.save()

    def _job(self, arm, seed):
        options, slot, job = self.options, self._slots.get(), None
        values = {"task": options.task, "method": arm.method, "rate": arm.rate, "slow": arm.slow, "seed": seed}
        env = {"KERAS_BACKEND": backend()} if options.framework == "keras" else harness.FLOAT32
        env = {**harness.ONE_THREAD, **env}
        gpus = self._gpus  # jobs side by side begin with different ones
        devices = [gpus[(slot * arm.workers + i) % len(gpus)] if gpus else "cpu" for i in range(arm.workers)]
        env |= {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
        script, how = SCRIPTS / f"learning_{options.framework}.py", {"words": ["--seed", seed], "env": env}
        try:
            with harness.Job(script, {**values, "epochs": options.epochs}, devices=devices, **how) as job:
                self._jobs.add(job)
                return job.wait(options.limit)[0]
        except SystemExit as exc:
            return {"failed": str(exc)[-2000:], "curve": []}
        finally:
            self._jobs.discard(job)
            self._slots.put(slot)

    def _keep(self, arm, seed, found):
        points, lower = found["curve"], self.task.lower
        run = {**arm._asdict(), "seed": seed, "bytes_sent": None, **found}
        run["to_target"] = {f"{target:g}": first_reach(points, target, lower) for target in self.task.targets}
        run["best"] = (min if lower else max)((value for _, _, value in points), default=None)
        run["final"] = points[-1][2] if points else None
        processors = len(self._gpus) or len(os.sched_getaffinity(0))
        run["at_once"] = self._at_once(arm.workers)
        run["seconds_hold"] = self.options.jobs <= 1 and arm.workers <= processors
        self.runs.append(run)
        self.runs.sort(key=lambda each: self._order.index((Arm.of(each), each["seed"])))
        self.save()
        steps = {target: reach and round(reach["steps"]) for target, reach in run["to_target"].items()}
        print(f"{arm}, seed {seed}: steps {steps}, best {run['best']}", flush=True)
        print(run.get("failed", ""), end="", flush=True)

    def results(self):
        options = {name: value for name, value in vars(self.options).items() if name not in ("out", "plot")}
        found = {**self.about(), "options": options, "gpus": len(self._gpus), "best_rate": self.rate}
        found |= {name: getattr(self.task, name) for name in ("value", "lower", "targets", "batch_size")}
        return {**found, "results": summarize(self.runs, self.task.targets, self.rate), "runs": self.runs}

    def save(self):
        return harness.save(self.name, self.results(), self.options)


def settle(options):
    """Fill in what was not given: from the task, or little of it with --quick; return why there can be no study."""
    task, quick = TASKS[options.task], options.quick
    options.framework = options.framework or task.frameworks[0]
    options.rates = options.rates or list(task.rates[1:3] if quick else task.rates)
    options.epochs = options.epochs or (QUICK_EPOCHS if quick else task.epochs)
    options.workers = options.workers or (WORKERS[:1] if quick else WORKERS)
    options.seeds = options.seeds or (SEEDS[:1] if quick else SEEDS)
    here = [name for name in METHODS if options.framework == "keras" or not METHODS[name].averages]
    options.methods = [name for name in options.methods or here if name != PLAIN]
    unknown = [name for name in options.methods if name not in here]
    if unknown:
        return f"got --methods {' '.join(unknown)} with {options.framework}: choose among {', '.join(here)}"
    if options.framework not in task.frameworks or (options.framework == "lasagne" and options.device != "cpu"):
        kinds = f"{options.task} is for {task.frameworks}; Lasagne for the CPU alone"
        return f"got --framework {options.framework}: {kinds}"
    if options.jobs < (0 if options.device == "cuda" else 1):
        return f"got --jobs {options.jobs}: it counts runs side by side, and must be at least 1, with --device cuda 0"
    if options.slow is not None and not 1 <= options.slow < min(options.workers):
        return f"got --slow {options.slow}: give a rank that each job of {options.workers} has, and not 0"
    if options.device == "cuda" and not cuda_devices().names:
        return f"got --device cuda, but {cuda_devices().why_none()}: leave it out for the CPU"
    try:
        task.data()
    except DataMissing as exc:
        return str(exc)
    return ""


def measure():
    runs = {"rates": [float], "epochs": int, "workers": [int], "seeds": [int], "slow": int}
    how = {"device": "cpu", "jobs": 1, "limit": 7200.0, "plot": None}
    options = harness.options(__doc__, task="digits", framework=None, methods=[], **runs, **how)
    if options.plot:
        draw(json.loads(Path(options.plot).read_text()), Path(options.plot))
        return 0
    why = settle(options)
    if why:
        print(why)
        return 1
    study = Study(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the jobs end too
    study.run()
    show(study.results())
    path = study.save()
    if path and util.find_spec("matplotlib"):
        draw(json.loads(path.read_text()), path)
    return int(any("failed" in run for run in study.runs))


if __name__ == "__main__":
    harness.main(measure)
