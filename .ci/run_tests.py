"""Run all tests in .venv, then the base tests on every other Python found; the last lines say how each went.

Usage: .venv/bin/python .ci/run_tests.py [PYTEST ARGUMENT ...]    (the arguments are those of the first run only)
"""

from __future__ import annotations

import subprocess
import sys

sys.dont_write_bytecode = True

import base_pythons
from common import CACHE, ROOT, VENV, SetupError, only_one


def run_pytest(title: str, command: list[str]) -> str:
    """Run pytest with its output where the user sees it; return how it went."""
    print(f"\n== {title}", flush=True)
    status = subprocess.run(command, cwd=ROOT).returncode
    return "passed" if status == 0 else f"FAILED (exit status {status})"


def run_base(base: base_pythons.BasePython) -> str:
    if base.problem:
        return f"{'FAILED' if base.broken else 'skipped'}: {base.problem}"
    # A cache of its own: --lf after make test means the main run.
    cache = f"cache_dir={CACHE / f'pytest-{base.version}'}"
    command = [str(base.python), "-m", "pytest", "-q", "-m", "base", "-o", cache, "tests"]
    return run_pytest(f"Python {base.version}: base tests", command)


def main() -> int:
    outcomes = {
        "3.11": run_pytest("Python 3.11: all tests", [str(VENV / "bin" / "python"), "-m", "pytest", *sys.argv[1:]])
    }
    print("\n== other Pythons", flush=True)
    try:
        with only_one():
            prepared = base_pythons.prepare_all()
        outcomes.update({base.version: run_base(base) for base in prepared})
    except SetupError as error:
        outcomes["others"] = f"FAILED: {error}"
    print("\n== summary")
    for version, outcome in outcomes.items():
        print(f"Python {version:5s} {outcome}")
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
