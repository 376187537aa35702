"""The harness of the benchmarks: options, jobs, measurements in turn, medians, tables, goals and result files.

A benchmark is a file with ``measure``, which starts jobs, and mostly ``work``, which each of their workers runs;
`main` calls the one or the other. `Job` hands values to the workers, who fetch them by `given` and answer by `give`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import multiprocessing
import os
import platform
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "benchmarks"
PACKAGES = ("numpy", "pyzmq", "msgspec", "Theano", "Lasagne", "blocks", "fuel", "Keras", "torch", "jax")
PACKAGES += ("tensorflow-cpu", "tensorflow")
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
ONE_THREAD |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
ONE_THREAD |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
FLOAT32 = {"THEANO_FLAGS": ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), "floatX=float32"]))}
GIVEN = "PLATOON_BENCHMARK"  # the environment variable with what a job was given
GOALS: list[dict] = []
median = statistics.median


def main(measure, work=None) -> None:
    raise SystemExit(work(given()) if work and GIVEN in os.environ else measure())


def options(doc: str, **defaults) -> argparse.Namespace:
    """Parse --quick, --out, and an option for each keyword.

    A default tells the type: None is text, a type has no default, a list takes several values (of a type alone:
    without a default), a tuple has the values to choose from, and False is a flag.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds; results are saved with --out alone")
    parser.add_argument("--out", type=Path, help="folder for the results  [docs/benchmarks]")
    for name, default in defaults.items():
        flag, shown = f"--{name.replace('_', '-')}", {"default": default, "help": f"[{default}]"}
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif default is None or isinstance(default, type):
            parser.add_argument(flag, type=default or str)
        elif isinstance(default, (tuple, list)):
            chosen, kind = default if isinstance(default, tuple) else None, type(default[0]) if default else str
            if kind is type:
                (kind,), default = default, []
            parser.add_argument(flag, nargs="+", type=kind, choices=chosen, default=list(default), help=f"{default}")
        else:
            parser.add_argument(flag, type=type(default), **shown)
    return parser.parse_args()


# Jobs.
def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Job:
    """A running job of a script: a launcher on each host, or one process of plain Python; a context manager.

    ``values`` and the job's folder are what `given` returns to the workers. Each has one of the ``devices``, which are
    divided equally among the ``hosts`` (`namespaces.Host`; None is this machine). ``words`` are more options of
    `platoon launch`, ``arguments`` those of the script, ``env`` more variables, ``path`` more folders to import from.
    """

    def __init__(self, script, values=None, *, devices=("cpu", "cpu"), words=(), env=None, hosts=(None,),
                 launched=True, arguments=(), path=()):  # fmt: skip
        self.folder, self.size = Path(tempfile.mkdtemp()), len(devices)
        (self.folder / "key").touch(0o600)
        (self.folder / "key").write_text(secrets.token_hex(32))
        folders = [ROOT, ROOT / "benchmarks", *path, os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(str(each) for each in folders if each)
        ours = {"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, "PYTHONPATH": path}
        ours |= {"PLATOON_KEY_FILE": f"{self.folder}/key", **(env or {})}
        ours[GIVEN] = json.dumps({**(values or {}), "folder": str(self.folder)})
        address, each = hosts[0].address if hosts[0] else "127.0.0.1", len(devices) // len(hosts)
        self.processes, port = [], free_port()
        for number, host in enumerate(hosts):
            command = [*(host.enter() if host else []), sys.executable]
            if launched:
                mine = devices[number * each : (number + 1) * each]
                command += ["-m", "platoon_base", "launch", "-D", *mine, "--log-dir", f"{self.folder}/logs{number}"]
                if len(hosts) > 1:
                    command += ["--nnodes", len(hosts), "--node-rank", number, "--rdzv-endpoint", f"{address}:{port}"]
                    ours["NCCL_HOSTID"] = f"host{number}"  # NCCL sends over sockets between different ones
                command += words
            with open(self.folder / f"output{number}.log", "w") as output:
                command = [*map(str, [*command, script, *arguments])]
                self.processes.append(subprocess.Popen(command, env=ours, stdout=output, stderr=subprocess.STDOUT))

    def failed(self) -> bool:
        return any(process.poll() for process in self.processes)

    def failure(self, why: str = "") -> SystemExit:
        logs = [*sorted(self.folder.glob("output*.log")), *sorted(self.folder.glob("logs*/rank*.log"))]
        text = "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)
        return SystemExit(f"{text}\nthe job FAILED {why}")

    def wait(self, limit_s: float = 900.0) -> list[dict]:
        """Return what each worker gave, once the job has ended well."""
        deadline = time.monotonic() + limit_s
        try:
            statuses = [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise self.failure(f"to end within {limit_s:g} s") from None
        if any(statuses):
            raise self.failure(f"with {statuses}")
        return self.answers()

    def answers(self) -> list[dict]:
        paths = sorted(self.folder.glob("[0-9]*.json"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text()) for path in paths]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc_info) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def job(script, values=None, *, limit_s: float = 900.0, **how) -> list[dict]:
    """Run a job to its end; returns what each worker gave."""
    with Job(script, values, **how) as running:
        return running.wait(limit_s)


def given() -> SimpleNamespace:
    found = SimpleNamespace(**json.loads(os.environ[GIVEN]))
    found.folder = Path(found.folder)
    return found


def give(rank: int, found) -> None:
    write(given().folder / f"{rank}.json", found)


def write(path: Path, found) -> None:
    """Write JSON, so that no reader sees a part of it."""
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)


def in_turns(script, jobs: dict[str, dict], turns: int, per_round: int = 1, limit_s: float = 900.0) -> dict:
    """Start jobs by their options, and let them measure in turn, in every second round in the opposite order.

    Returns what the workers of each gave. Their `turn` waits for its number.
    """
    with contextlib.ExitStack() as stack:
        jobs = {name: stack.enter_context(Job(script, **how)) for name, how in jobs.items()}
        deadline = time.monotonic() + limit_s
        for number in range(turns):
            for each in list(jobs.values())[:: 1 if number // per_round % 2 else -1]:
                (each.folder / f"go-{number}").touch()
                while len(list(each.folder.glob(f"done-{number}-*"))) < each.size:
                    if time.monotonic() > deadline or any(process.poll() is not None for process in each.processes):
                        raise each.failure(f"in turn {number}")
                    time.sleep(0.002)
        return {name: each.wait(60) for name, each in jobs.items()}


@contextlib.contextmanager
def turn(number: int, rank: int = 0, limit_s: float = 600.0):
    """Wait, in a worker, until it is this job's turn; at the end of the block it is over."""
    folder, deadline = given().folder, time.monotonic() + limit_s
    while not (folder / f"go-{number}").exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {limit_s:g} s for turn {number}: another job has failed?")
        time.sleep(0.002)
    yield
    (folder / f"done-{number}-{rank}").touch()


class Patient:
    """For a collective call whose other ranks all come: what started them ends the others if one dies."""

    def why_absent(self, ranks):
        return ""

    def moved(self, ranks):
        return -math.inf


class Together:
    """Processes of this file that do something at the same time; ``target(rank, *values, pipe)`` serves each."""

    def __init__(self, count, target, *values):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=target, args=(rank, *values, theirs)))
            self.processes[-1].start()
            self.pipes.append(ours)

    def __enter__(self):
        for pipe in self.pipes:
            pipe.recv()  # it is ready
        return self

    def seconds(self, *values, count=None) -> float:
        """Let processes do what the values say from one moment on; returns when the last is done."""
        start, pipes = time.perf_counter() + 0.005, self.pipes[:count]
        for pipe in pipes:
            pipe.send((*values, start))
        return max([pipe.recv() for pipe in pipes])

    def __exit__(self, *exc_info):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(20)


def orders(pipe):
    """Yield the values of each order in a process of `Together`, with the moment to start at, when it has come."""
    pipe.send("ready")
    for *values, start in iter(pipe.recv, None):
        while time.perf_counter() < start:
            pass
        yield (*values, start)


# Measurements.
def seconds(call, times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def interleaved(calls: dict, rounds: int, skip: int = 0) -> dict[str, list]:
    found: dict[str, list] = {name: [] for name in calls}
    for number in range(skip + rounds):
        for name, call in calls.items():
            value = call()
            if number >= skip:
                found[name].append(value)
    return found


def slowest(ranks: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    return {way: [max(times) for times in zip(*(rank[way] for rank in ranks))] for way in ranks[0]}


def ratio(values: list[float], others: list[float]) -> float:
    return median(a / b for a, b in zip(values, others))


def compared(times: dict[str, list[float]], reference: str, **about) -> list[dict]:
    """Return a row for each way with its milliseconds, and the ratio and difference to the reference."""
    return [
        {**about, "way": way, "rounds": len(taken), "ms": 1e3 * median(taken), "ratio": ratio(taken, times[reference]),
         "added ms": 1e3 * median(a - b for a, b in zip(taken, times[reference]))}
        for way, taken in times.items()
    ]  # fmt: skip


# Results.
def machine() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    found = {"date": datetime.date.today().isoformat(), "cpu": models[0] if models else platform.machine()}
    found |= {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    return {**found, "system": f"{platform.system()} {platform.release()}", "versions": versions, **gpus()}


def gpus() -> dict:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [line.split(", ") for line in lines if line.count(", ") == 1]  # else an error of the driver
    return {"gpus": [name for name, _ in rows], "driver": rows[0][1]} if rows else {}


def table(title: str, rows: list[dict], width: int = 160) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = dict.fromkeys(key for row in rows for key, cell in row.items() if not isinstance(cell, (list, dict)))
    shown = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for heading in columns:
        shown.add_column(heading, justify="right")
    for row in rows:
        cells = [row.get(key) for key in columns]
        cells = ["-" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells]
        shown.add_row(*cells)
    Console(width=width).print(shown)


def goal(text: str, reached: float, wanted: float, at_least: bool = True) -> None:
    ok, sign = (reached >= wanted, ">=") if at_least else (reached <= wanted, "<=")
    print(f"{'reached' if ok else 'MISSED '}  {text}: {reached:.3g} (goal {sign} {wanted:g})")
    GOALS.append({"goal": text, "measured": reached, "wanted": f"{sign} {wanted:g}", "reached": ok})


def save(name: str, results: dict, options: argparse.Namespace) -> Path | None:
    """Write results and goals as JSON beside the machine's description; returns the path, None if none is wanted."""
    if options.quick and not options.out:
        return None
    folder = options.out or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **results, "goals": GOALS}, indent=1) + "\n")
    return path


def plot(path: Path | None, panels: dict[str, dict[str, tuple]], log: bool = True, **labels) -> None:
    """Draw lines by their labels in panels beside each other, into a PNG beside the results."""
    if path is None:
        return
    from matplotlib.figure import Figure  # it draws without a display

    drawn = Figure(figsize=(6 * len(panels), 3.6))
    axes = drawn.subplots(ncols=len(panels), sharey=True, squeeze=False)
    for axis, (title, lines) in zip(axes[0], panels.items()):
        for name, (at, values) in lines.items():
            axis.plot(at, values, "o-" if len(at) < 100 else "-", label=name)
        axis.set(title=title, **labels, **({"xscale": "log"} if log else {}))
    axes[0][0].legend()
    drawn.savefig(path.with_suffix(".png"), dpi=110, bbox_inches="tight")
