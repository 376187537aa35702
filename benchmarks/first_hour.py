"""One task with this package, torchrun, accelerate, Lightning and Ray Train, as a user meets them in the first hour.

The scripts are those of docs/ten_minutes.md, on two workers and the CPU. Measured are the lines that each adds to the
script of one process, the seconds to the first step and to the end, the memory of all processes (the largest sum of
their proportional set sizes), the lines of `--help`, the lines printed when rank 1 meets a wrong label and the first
that names it, and the files that are there at the end. All tools run in turn, in one environment that pip fills unless
`--environment` is given.

    python benchmarks/first_hour.py [--rounds 5] [--environment FOLDER] [--quick]
"""

import contextlib
import difflib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

PACKAGES = ["torch==2.13.0", "accelerate==1.15.0", "lightning==2.6.6", "ray[train]==2.60.0"]
COMMANDS = {
    "one process": "python train.py",
    "platoon": "platoon launch -n 2 train.py",
    "torchrun": "torchrun --nproc-per-node 2 train.py",
    "accelerate": "accelerate launch --multi_gpu --num_processes 2 train.py",
    "lightning": "python train.py",
    "ray": "python train.py",
}
HELP = {"platoon": "platoon launch", "torchrun": "torchrun", "accelerate": "accelerate launch"}
MARK = "FIRST_HOUR"  # an environment variable that finds the processes of a job
# It stands behind the task: the time of the first step, and labels that do not exist on rank 1.
WATCH = """
import os, time
from torch.optim.optimizer import register_optimizer_step_post_hook as hook

def stepped(*args):
    with open(f"{os.environ['FIRST_HOUR']}/step-{os.getpid()}", "a") as file:
        file.write(f"{time.time()}\\n" * (file.tell() == 0))

hook(stepped)
rank = next((os.environ[n] for n in ("PLATOON_RANK", "RANK", "LOCAL_RANK") if n in os.environ), "0")
if os.environ.get("FAIL") and rank == "1":
    right_rows = make_rows

    def make_rows(count, seed):
        rows = right_rows(count, seed)
        return TensorDataset(rows.tensors[0], rows.tensors[1] + 10)
"""


def scripts(page: str) -> dict[str, str]:
    """Return the scripts of a page: whole ones, and those that its differences make of train.py."""
    found = dict(re.findall(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    for name, diff in re.findall(r"^<!-- from: (.*?) -->\n```diff\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        hunks = diff.split(" ...\n")
        sides = [["".join(line[1:] or "\n" for line in hunk.splitlines(True) if line[0] != sign) for sign in "-+"]
                 for hunk in hunks]  # fmt: skip
        if len(hunks) == 1:
            found[f"{name}, here"], found[name] = sides[0]
            continue
        found[name] = found["train.py"]
        for ours, theirs in sides:
            assert found[name].count(ours) == 1, f"{name}: not once in train.py:\n{ours}"
            found[name] = found[name].replace(ours, theirs)
    return found


def added(script: str, plain: str) -> int:
    return sum(line.startswith("+ ") for line in difflib.ndiff(plain.splitlines(), script.splitlines()))


def megabytes(mark: str) -> float:
    """Return the memory of all processes that have a mark in their environment."""
    total = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                total += int(re.search(r"Pss: *(\d+)", (process / "smaps_rollup").read_text())[1]) / 1e3
    return total


def run(tool: str, programs: Path, script: str, task: str, fail: str = "") -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder, marks = Path(name) / "work", Path(name)
        folder.mkdir()
        (folder / "task.py").write_text(task + WATCH)
        (folder / "train.py").write_text(script)
        env = {**os.environ, **harness.ONE_THREAD, MARK: name, "FAIL": fail, "ACCELERATE_USE_CPU": "1"}
        program, *words = COMMANDS[tool].split()
        began, most = time.time(), 0.0
        with open(marks / "output", "w") as output:
            how = {"cwd": folder, "env": env, "stdout": output, "stderr": subprocess.STDOUT}
            process = subprocess.Popen([programs / program, *words], **how)
            while process.poll() is None:
                most = max(most, megabytes(f"{MARK}={name}"))
                time.sleep(0.2)
        seconds, text = time.time() - began, (marks / "output").read_text(errors="replace")
        if bool(process.returncode) != bool(fail):
            raise SystemExit(f"{text}\n{tool} FAILED: it ended with {process.returncode}")
        steps = [float(path.read_text()) - began for path in marks.glob("step-*")]
        while megabytes(f"{MARK}={name}") and time.time() - began < 120:  # Ray's processes end later.
            time.sleep(0.2)
        kept = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        kept = [file for file in kept if "__pycache__" not in file and file not in ("task.py", "train.py")]
        return {"first": max(steps, default=0.0), "seconds": seconds, "MB": most, "kept": kept, "text": text}


def measure():
    options = harness.options(__doc__, rounds=5, environment=None)
    texts = scripts((harness.ROOT / "docs" / "ten_minutes.md").read_text())
    texts |= {"platoon": texts["train.py"], "plain": texts["one process"]}
    texts["ray"] = (harness.ROOT / "benchmarks" / "scripts" / "first_hour_ray.py").read_text()
    with contextlib.ExitStack() as stack:
        folder = Path(options.environment or stack.enter_context(tempfile.TemporaryDirectory()))
        if not options.environment:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([folder / "bin" / "pip", "install", "-q", *PACKAGES, harness.ROOT], check=True)
        calls = {tool: lambda tool=tool: run(tool, folder / "bin", texts[tool], texts["task.py"]) for tool in COMMANDS}
        found = harness.interleaved(calls, 1 if options.quick else options.rounds)
        rows = []
        for tool, runs in found.items():
            row = {"tool": tool, "added lines": added(texts[tool], texts["plain"])}
            row |= {f"{what}, s": harness.median(each[what] for each in runs) for what in ("first", "seconds")}
            row |= {"MB": harness.median(each["MB"] for each in runs)}
            if tool in HELP:
                program, *words = HELP[tool].split()
                command = [folder / "bin" / program, *words, "--help"]
                row["help lines"] = subprocess.check_output(command, text=True).count("\n")
            if tool != "one process":
                failed = run(tool, folder / "bin", texts[tool], texts["task.py"], "1")
                lines = failed["text"].splitlines()
                first = next((number for number, line in enumerate(lines, 1) if "out of bounds" in line), None)
                row |= {"error lines": len(lines), "named in line": first, "error, s": failed["seconds"]}
            rows.append({**row, "kept": runs[-1]["kept"]})
    harness.table("one task on two workers; medians", rows)
    for row in rows:
        print(f"{row['tool']} leaves {', '.join(row['kept'])}")
    harness.save("first_hour", {"packages": PACKAGES, "results": rows}, options)


if __name__ == "__main__":
    harness.main(measure)
