"""How soon N workers learn what one process learns: steps per worker and seconds to targets, on real data.

    KERAS_BACKEND=torch python benchmarks/learning.py --task fashion-mnist [--jobs 8] [--quick] [--out FOLDER]
    python benchmarks/learning.py --framework lasagne --task stdlib-lstm

Tasks and targets are the table in scripts/learning_tasks.py, methods that in scripts/learning_methods.py. Plain
training comes first, with each learning rate; the best one, by the steps to the hardest target, is kept for all
methods, multiplied by what a method documents. Every run makes as many passes over the data. Each worker has one thread
of the CPU, or with --device cuda a GPU: worker i has GPU i modulo their number.

All rows are validated on after each pass over the data, which takes a worker 1/N of the steps. So the steps to a target
are interpolated between the validation that reaches it and the one before; else the coarser steps of plain training
would speak for the methods. A target that the first validation has reached counts at its end. Medians are over
the seeds, and a run that never reached the target is the longest of all. Steps per worker hold on any machine. Seconds
hold if one run is made at a time, with as many idle cores or GPUs as there are workers, or with --jobs 0: as many runs
side by side as there are GPUs for, each worker on its own. Elsewhere the table has none.

--slow R runs each method a second time, in which rank R takes twice as long for each mini-batch. Where workers do not
wait for one another it makes half the mini-batches of an epoch, so all come to the validation at the same time. Where
they wait, each step takes twice as long. So "fast steps" tell the time in steps that a fast worker makes by itself.

Results are written after each run; --resume goes on from those that an interrupted study has left. A run that fails is
kept as such, and the others go on; the exit status is 1 then. Keras's environments have no matplotlib; draw the plots
with one that has it:

    python benchmarks/learning.py --plot docs/benchmarks/learning-digits.json
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import util
from pathlib import Path

import report
from keras_fit import ONE_THREAD, backend
from learning_report import Arm, best_rate, describe, draw, first_reach, show, summarize
from scripts.learning_methods import METHODS, PLAIN, PLAIN_AVERAGE
from scripts.learning_tasks import TASKS, DataMissing

from platoon_base.devices.discovery import cuda_devices

SCRIPTS = {"keras": "learning_train.py", "lasagne": "learning_train_lasagne.py"}
WORKERS, SEEDS = [2, 4], [1, 2, 3, 4, 5]
QUICK_EPOCHS = 8
GRACE_S = 20


class Study:
    """The runs of one task so far.

    Attributes
    ----------
    rate : float or None
        The learning rate that plain training does best with, once that is known.
    runs : list of dict
        In the order of the arms and seeds, whichever ended first.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.task = options, TASKS[options.task]
        self.rate: float | None = None
        self._order: list[tuple[Arm, int]] = []
        self._gpus = cuda_devices().names if options.device == "cuda" else []
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._processes: set[subprocess.Popen] = set()
        self._kept = earlier_runs(self.path.with_suffix(".json"), self.about()) if options.resume else {}
        self.runs = list(self._kept.values())  # also those of arms that are not asked for this time

    def run(self) -> None:
        """Run everything: plain training with each learning rate, then the methods with the best one."""
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

    def _measure(self, arms: list[Arm]) -> None:
        """Make the runs of these arms with all seeds, some side by side; keep each as it ends."""
        wanted = [(arm, seed) for arm in arms for seed in self.options.seeds]
        self._order += wanted
        jobs = side_by_side(self.options.jobs, max((arm.workers for arm in arms), default=1), self._gpus)
        self._slots = queue.SimpleQueue()
        for slot in range(jobs):
            self._slots.put(slot)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                futures = {pool.submit(self._job, *key): key for key in wanted if key not in self._kept}
                for future in as_completed(futures):
                    self._keep(*futures[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                stop(self._processes)
                raise
        self.save()

    def _keep(self, arm: Arm, seed: int, found: dict) -> None:
        """Take a run in, write all results, and print a line on it."""
        points = found["curve"]
        run = {**arm._asdict(), "seed": seed, "bytes_sent": None, **found}
        lower = self.task.lower
        run["to_target"] = {f"{target:g}": first_reach(points, target, lower) for target in self.task.targets}
        run["best"] = (min if lower else max)((value for _, _, value in points), default=None)
        run["final"] = points[-1][2] if points else None
        processors = len(self._gpus) or len(os.sched_getaffinity(0))
        run["at_once"] = side_by_side(self.options.jobs, arm.workers, self._gpus)
        run["seconds_hold"] = self.options.jobs <= 1 and arm.workers <= processors
        self.runs.append(run)
        self.runs.sort(key=self._place)
        self.save()
        print(f"[{time.monotonic() - BEGAN:5.0f} s] {describe(run)}", flush=True)

    def _place(self, run: dict) -> int:
        """Return where a run belongs: those of arms that are not asked for come first, as they were."""
        key = Arm.of(run), run["seed"]
        return self._order.index(key) if key in self._order else -1

    def _job(self, arm: Arm, seed: int) -> dict:
        """Run one job to its end; returns what rank 0 wrote, or how it failed and an empty curve."""
        slot = self._slots.get()
        with tempfile.TemporaryDirectory() as folder:
            try:
                begin = ["launch", *device_options(arm.workers, slot, self._gpus)]
                begin += ["--seed", seed, "--log-dir", f"{folder}/logs"]
                script = Path(__file__).parent / "scripts" / SCRIPTS[self.options.framework]
                words = [script, f"{folder}/result.json", "--task", self.options.task, "--method", arm.method]
                words += ["--rate", arm.rate, "--seed", seed, "--epochs", self.options.epochs]
                words += [] if arm.slow is None else ["--slow", arm.slow]
                failed = self._process([*map(str, [*begin, *words])], Path(folder, "output.log"))
                if failed:
                    return {"failed": failed, "curve": []}
                return json.loads(Path(folder, "result.json").read_text())
            finally:
                self._slots.put(slot)

    def _process(self, words: list[str], output: Path) -> str:
        """Run a launcher to its end; returns how it failed, or nothing."""
        command = [sys.executable, "-m", "platoon_base", *words]
        env = environment(self.options.framework, self._gpus)
        with output.open("w") as file:
            process = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)
        self._processes.add(process)
        try:
            status = f"status {process.wait(self.options.limit)}"
        except subprocess.TimeoutExpired:
            status = f"no end within {self.options.limit:g} s"
            stop({process})
        finally:
            self._processes.discard(process)
        return "" if status == "status 0" else f"{status}: {output.read_text()[-2000:]}"

    def about(self) -> dict:
        """Return what all runs of a study have in common."""
        return {
            "framework": "Lasagne" if self.options.framework == "lasagne" else f"Keras on {backend()}",
            "task": self.options.task,
            "epochs": self.options.epochs,
            "device": self.options.device,
        }

    def results(self) -> dict:
        """Return all that is known so far, as it is written."""
        left_out = ("out", "plot", "resume")
        options = {name: value for name, value in vars(self.options).items() if name not in left_out}
        return {
            **self.about(),
            "options": options,
            "runs_at_once": self.options.jobs,
            "gpus": len(self._gpus),
            "value": self.task.value,
            "lower": self.task.lower,
            "targets": self.task.targets,
            "batch_size": self.task.batch_size,
            "methods": {name: {"what": each.what, "rate": each.rate} for name, each in METHODS.items()},
            "best_rate": self.rate,
            "results": summarize(self.runs, self.task.targets, self.rate),
            "runs": self.runs,
        }

    @property
    def path(self) -> Path:
        """Where the plots go; the results lie beside them."""
        framework = self.options.framework
        suffix = "" if framework == self.task.frameworks[0] else f"-{framework}"
        return (self.options.out or report.FOLDER) / f"learning-{self.options.task}{suffix}.png"

    def save(self) -> None:
        """Write the results, unless nothing is to be kept."""
        if self.keeps:
            report.save(self.path.stem, self.results(), self.path.parent)

    @property
    def keeps(self) -> bool:
        """Whether results are written."""
        return bool(self.options.out) or not self.options.quick


def side_by_side(jobs: int, workers: int, gpus: list[str]) -> int:
    """Return how many runs of so many workers are made side by side: ``jobs``; for 0 as many as there are GPUs for."""
    return jobs or max(1, len(gpus) // workers)


def device_options(workers: int, slot: int, gpus: list[str]) -> list:
    """Return the words that give a job its devices: jobs side by side begin with different GPUs."""
    if not gpus:
        return ["-n", workers, "-D", "cpu"]
    return ["-D", *(gpus[(slot * workers + i) % len(gpus)] for i in range(workers))]


def environment(framework: str, gpus: list[str]) -> dict[str, str]:
    """Return the environment of all jobs: one thread for each worker, and no GPU unless some are to be used."""
    ours = {**ONE_THREAD, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if framework == "keras":
        ours["KERAS_BACKEND"] = backend()
    else:
        ours["THEANO_FLAGS"] = ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), "floatX=float32"]))
    if gpus:
        del ours["CUDA_VISIBLE_DEVICES"]
    return {**os.environ, **ours}


def earlier_runs(path: Path, about: dict) -> dict[tuple[Arm, int], dict]:
    """Return the runs in a file of results that did not fail; raise unless they are of the same study."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    other = {name: found.get(name) for name, value in about.items() if found.get(name) != value}
    if other:
        raise SystemExit(
            f"got --resume, and the runs in {path} are of {other}, these would be of "
            f"{ {name: about[name] for name in other} }: pass the same options, or another --out"
        )
    return {(Arm.of(run), run["seed"]): run for run in found["runs"] if run["curve"]}


def stop(processes: set[subprocess.Popen]) -> None:
    """End launchers, politely first: each then ends its workers."""
    for process in list(processes):
        process.send_signal(signal.SIGTERM)
    for process in list(processes):
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def settle(options: argparse.Namespace) -> None:
    """Fill in what was not given: from the task, or little of it with --quick."""
    task, quick = TASKS[options.task], options.quick
    options.framework = options.framework or task.frameworks[0]
    options.rates = options.rates or list(task.rates[1:3] if quick else task.rates)
    options.epochs = options.epochs or (QUICK_EPOCHS if quick else task.epochs)
    options.workers = options.workers or (WORKERS[:1] if quick else WORKERS)
    options.seeds = options.seeds or (SEEDS[:1] if quick else SEEDS)
    here = [name for name in METHODS if options.framework == "keras" or not METHODS[name].averages]
    options.methods = [name for name in options.methods or here if name != PLAIN]


def problem(options: argparse.Namespace) -> str:
    """Return why a study with these options cannot be made; nothing if it can."""
    task = TASKS[options.task]
    if options.framework not in task.frameworks:
        return f"got --framework {options.framework}: {options.task} is written for {', '.join(task.frameworks)}"
    if options.framework == "lasagne" and any(METHODS[name].averages for name in options.methods):
        return "got --framework lasagne and a method with an average of the weights: Keras 3 alone has it; leave it out"
    if options.framework == "lasagne" and options.device != "cpu":
        return f"got --device {options.device} with Lasagne: its tasks run on the CPU; leave it out"
    least = 0 if options.device == "cuda" else 1
    if options.jobs < least:
        return f"got --jobs {options.jobs}: it counts runs side by side, and must be at least {least}"
    if options.slow is not None and not 1 <= options.slow < min(options.workers):
        return (
            f"got --slow {options.slow} with --workers {options.workers}: it is a rank that each of these jobs has, "
            "and not 0, which measures"
        )
    if options.device == "cuda" and not cuda_devices().names:
        return f"got --device cuda, but {cuda_devices().why_none()}: leave it out for the CPU"
    try:
        task.data()
    except DataMissing as exc:
        return str(exc)
    return ""


def main(options: argparse.Namespace) -> int:
    """Measure, print, save, draw; returns the exit status."""
    if options.plot:
        draw(json.loads(options.plot.read_text()), options.plot.with_suffix(".png"), options.methods)
        return 0
    settle(options)
    why = problem(options)
    if why:
        print(why)
        return 1
    study = Study(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the jobs end too
    study.run()
    show(study.results())
    if study.keeps and util.find_spec("matplotlib"):
        draw(json.loads(json.dumps(study.results())), study.path)
    elif study.keeps:
        print(f"no plots: this Python has no matplotlib; one that has it draws them with --plot {study.path.stem}.json")
    return int(any("failed" in run for run in study.runs))


BEGAN = time.monotonic()


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--framework", choices=SCRIPTS, help="[the task's]")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="beside plain, which always runs  [all]")
    parser.add_argument("--workers", nargs="+", type=int, help=f"numbers of workers  {WORKERS}")
    parser.add_argument("--seeds", nargs="+", type=int, help=f"one run for each  {SEEDS}")
    parser.add_argument("--rates", nargs="+", type=float, help="learning rates of plain training  [the task's]")
    parser.add_argument("--epochs", type=int, help="passes over the data  [the task's]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where workers compute  [cpu]")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="K",
        help="runs side by side, without seconds; 0: as many as have GPUs of their own  [1]",
    )
    parser.add_argument("--slow", type=int, metavar="R", help="run each method also with rank R at half the speed")
    parser.add_argument("--limit", type=float, default=7200, help="seconds after which a run is given up  [7200]")
    parser.add_argument("--quick", action="store_true", help="few runs; nothing is saved unless --out is given")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    parser.add_argument("--resume", action="store_true", help="keep the runs that the file of results has already")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="only draw results, of --methods if given")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main(parse()))
