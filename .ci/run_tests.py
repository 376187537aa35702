"""Run all tests in .venv, the base tests on every other Python found, and the tests of the Keras adapter on Keras 3.

The last lines say how each went. BLOCKS names a checkout of Blocks to test with.

Usage: .venv/bin/python .ci/run_tests.py [PYTEST ARGUMENT ...]    (the arguments are those of the first run only)
       .venv/bin/python .ci/run_tests.py --keras [PYTEST ARGUMENT ...]    (the Keras adapter alone, on every back end)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.dont_write_bytecode = True

import base_pythons
import blocks_env
import keras_envs
import theano_header
from common import CACHE, ROOT, VENV, SetupError, only_one

PYTHON = VENV / "bin" / "python"
# All of it takes longer than it should after each commit: EVERY=1 runs the rest too.
EVERY = bool(os.environ.get("EVERY"))
OLDEST_AND_NEWEST = (base_pythons.VERSIONS[0], base_pythons.VERSIONS[-1])
NO_TESTS = 5  # pytest's exit status
# Tests wait for processes a third of the time; on larger machines memory would bound the number.
AT_ONCE = min(max(2, (os.cpu_count() or 1) * 3 // 2), 8)
# Without GPUs: each of the tests' processes would take most of the memory of one.
ON_THE_CPU = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
# Several tests at once keep the cores busy: with a thread for each core they wait for their own threads.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# A third of the time of JAX's tests is LLVM's, which optimizes programs that run for milliseconds.
QUICKLY_COMPILED = "--xla_backend_optimization_level=0"

Outcome = tuple[str, str]


def run_pytest(title: str, python: Path, *arguments: str, may_be_empty: bool = False, **environment: str) -> str:
    """Run pytest with its output where the user sees it; return how it went."""
    print(f"\n== {title}", flush=True)
    began = time.monotonic()
    command = [str(python), "-m", "pytest", "-n", str(AT_ONCE), "--dist", "worksteal", *arguments]
    status = subprocess.run(command, cwd=ROOT, env={**ONE_THREAD, **os.environ, **environment}).returncode
    if status == NO_TESTS and may_be_empty:
        return "no tests selected"
    minutes = f"{(time.monotonic() - began) / 60:.1f} min"
    return f"passed, {minutes}" if status == 0 else f"FAILED (exit status {status}), {minutes}"


def own_cache(name: str) -> list[str]:
    """Return options for a cache apart: --lf after make test means the main run."""
    return ["-o", f"cache_dir={CACHE / f'pytest-{name}'}"]


def files_about(word: str) -> list[str]:
    """Name the files of tests with this word: to import the others would take each process as long again."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if word in path.read_text(encoding="utf-8")]


def absent(prepared: base_pythons.BasePython | keras_envs.KerasEnv) -> str:
    """Return why there is no environment, or nothing if there is one."""
    return prepared.problem and f"{'FAILED' if prepared.broken else 'skipped'}: {prepared.problem}"


def run_others() -> Iterator[Outcome]:
    print("\n== other Pythons", flush=True)
    with only_one():
        prepared = base_pythons.prepare_all(base_pythons.VERSIONS if EVERY else OLDEST_AND_NEWEST)
    for base in prepared:
        yield f"Python {base.version}", absent(base) or run_base(base)


def run_base(base: base_pythons.BasePython) -> str:
    options = ["-q", "-m", "base and not slow", *own_cache(base.version), "tests"]
    return run_pytest(f"Python {base.version}: base tests", base.python, *options)


def run_keras_3(arguments: list[str]) -> Iterator[Outcome]:
    print("\n== Keras 3", flush=True)
    with only_one():
        prepared = keras_envs.prepare_all()
    for env in prepared:
        for backend in env.backends:
            yield f"Keras {backend}", absent(env) or run_keras(backend, env.python, arguments, **ON_THE_CPU)


def run_keras(backend: str, python: Path, arguments: list[str], **environment: str) -> str:
    # What is slow is so for the processes it starts and kills, which are alike on all back ends of Keras 3.
    marks = "keras" if EVERY or backend in ("theano", "torch") else "keras and not slow"
    options = ["-q", "-m", marks, *own_cache(f"keras-{backend}"), *files_about("keras"), *arguments]
    environment["KERAS_BACKEND"] = backend
    if backend == "jax" and not EVERY:
        environment["XLA_FLAGS"] = " ".join(filter(None, [QUICKLY_COMPILED, os.environ.get("XLA_FLAGS")]))
    # What the user's arguments select need not be there on each back end.
    return run_pytest(f"Keras on {backend}", python, *options, may_be_empty=bool(arguments), **environment)


def stages(arguments: list[str]) -> Iterator[Outcome]:
    """Yield what was run and how it went, one after the other."""
    if arguments[:1] == ["--keras"]:
        yield "Keras theano", run_keras("theano", PYTHON, arguments[1:])
        yield from run_keras_3(arguments[1:])
        return
    blocks = blocks_env.find()
    yield "Blocks", blocks.outcome
    environment = {"KERAS_BACKEND": "theano", **blocks.environment}
    yield "Python 3.11", run_pytest("Python 3.11: all tests", PYTHON, *arguments, **environment)
    yield from run_others()
    yield from run_keras_3([])


def main() -> int:
    outcomes: list[Outcome] = []
    flags = [os.environ.get("THEANO_FLAGS"), theano_header.faster_flags(PYTHON)]
    os.environ["THEANO_FLAGS"] = ",".join(filter(None, flags))
    try:
        outcomes.extend(stages(sys.argv[1:]))
    except SetupError as error:
        outcomes.append(("environments", f"FAILED: {error}"))
    print("\n== summary")
    for label, outcome in outcomes:
        print(f"{label:17s}{outcome}")
    return int(any(outcome.startswith("FAILED") for _, outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
