"""The parts that checks of frameworks are made of, for `platoon doctor`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

__all__ = ["SETUP", "Check", "importable", "installed", "last_line"]

_TIMEOUT_S = 120
_MAX_REASON = 120  # characters
_PREPARE = "from platoon_base import compat; compat.apply(); "
SETUP = "pip install 'platoon-plugins[theano]'"  # what installs Theano, with a NumPy that it compiles with


class Check(NamedTuple):
    """The result of one check.

    Attributes
    ----------
    name : str
    works : bool
    finding : str
        A version, or the fault.
    remedy : str
        How to get it; empty if it works.
    group : str
        The heading that it stands below.
    needed : bool
        Whether jobs of any framework need it.
    goes_with : str
        The framework whose scripts alone use it; "" for one by itself.
    absent : bool
        Whether it is simply not there, rather than broken.
    """

    name: str
    works: bool
    finding: str
    remedy: str = ""
    group: str = ""
    needed: bool = False
    goes_with: str = ""
    absent: bool = False


def installed(name: str, remedy: str, distributions: Sequence[str] = ()) -> Check:
    """Look for a distribution, without an import.

    Parameters
    ----------
    name : str
        Of the check, and of the distribution if that is the only one.
    remedy : str
    distributions : sequence of str, optional
        Several that have the same module.
    """
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
    """Import a framework in a process of its own, prepared as a worker is, or run other code with it.

    Parameters
    ----------
    name : str
        Of the check.
    module : str
        The module, and the distribution if ``distributions`` names no others.
    remedy : str
        How to get it.
    code : str, optional
        What to run instead of the import.
    fails : str, optional
        What to say if that fails.
    distributions : sequence of str, optional
    """
    found = installed(module, remedy, distributions)
    if not found.works:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            return found._replace(name=name)
        found = Check(name, True, f"in {os.path.dirname(spec.origin)}")  # a checkout on PYTHONPATH
    _, reason = last_line(code or f"import {module}", os.environ)
    if reason:
        return Check(name, False, f"{found.finding}, {fails}: {reason}", remedy)
    return found._replace(name=name)


def last_line(code: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Run code in a process that is prepared as a worker is; return its last line, and why it failed, if it did."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PREPARE + code],
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"it takes over {_TIMEOUT_S} s"
    lines = done.stdout.strip().splitlines() or [""]
    return lines[-1], _why(done.stderr) if done.returncode else ""


def _why(errors: str) -> str:
    """Pick the error out of a traceback; Theano puts the whole C program behind it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (named or lines or ["no message"])[-1][:_MAX_REASON]
