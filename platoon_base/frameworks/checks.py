"""The building blocks of checks of frameworks for `platoon doctor`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from platoon_base.timeouts import timeout

# In characters.
_MAX_REASON = 120
_PREPARE = "from platoon_base import compat; compat.apply(); "
# Installs Theano with a NumPy that it compiles with.
SETUP = "pip install 'platoon-plugins[theano]'"


class Check(NamedTuple):
    name: str
    works: bool
    # A version, or the fault.
    finding: str
    remedy: str = ""
    # The heading of the check, and whether jobs of any framework need it.
    group: str = ""
    needed: bool = False
    # The only framework whose scripts use it, if there is one.
    goes_with: str = ""
    # Whether it is not installed, rather than broken.
    absent: bool = False


def installed(name: str, remedy: str, distributions: Sequence[str] = ()) -> Check:
    """Check for a distribution, or one of several with the same module, without an import."""
    for distribution in distributions or (name,):
        try:
            return Check(name, True, metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
    return Check(name, False, "not installed", remedy, absent=True)


def importable(
    name: str,
    module: str,
    remedy: str,
    code: str = "",
    fails: str = "cannot be imported",
    distributions: Sequence[str] = (),
) -> Check:
    """Import ``module``, or run ``code``, in a process that is prepared like a worker."""
    found = installed(module, remedy, distributions)
    if not found.works:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            return found._replace(name=name)
        # This is a checkout on PYTHONPATH.
        found = Check(name, True, f"in {os.path.dirname(spec.origin)}")
    _, reason = last_line(code or f"import {module}", os.environ)
    if reason:
        return Check(name, False, f"{found.finding}, {fails}: {reason}", remedy)
    return found._replace(name=name)


def last_line(code: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Run code in a process prepared like a worker; return its last line, and the error if any."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PREPARE + code],
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout("query"),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"it takes over {timeout('query'):g} s"
    lines = done.stdout.strip().splitlines() or [""]
    return lines[-1], _why(done.stderr) if done.returncode else ""


def _why(errors: str) -> str:
    """Return the error in a traceback; Theano prints the whole C program after it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (named or lines or ["no message"])[-1][:_MAX_REASON]
