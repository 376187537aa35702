"""``platoon env``: versions, limits and settings, for a bug report."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import click

from platoon_base import __version__
from platoon_base.devices.discovery import cuda_devices
from platoon_base.frameworks.registered import registered
from platoon_base.job.files import running
from platoon_base.shm.segments import SHM_FOLDER
from platoon_base.system.limits import available_cores, available_memory

_DISTRIBUTIONS = ("numpy", "pyzmq", "posix_ipc", "msgspec", "rich", "click", "setproctitle")
_OPTIONAL = ("mpi4py", "tensorboard", "tensorboardX", "cloudpickle")
_PREFIXES = ("PLATOON", "CUDA", "NVIDIA", "NCCL", "OMP", "OPENBLAS", "MKL", "SLURM")
_OTHERS = r"PYTHON.*|LD_LIBRARY_PATH|TMPDIR|VIRTUAL_ENV|CONDA_DEFAULT_ENV|TERM|COLUMNS|LINES|LANG|LC_.*"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_CHARACTERS = 1000


def environment_report() -> dict[str, dict[str, str]]:
    return {
        "package": {"platoon-plugins": __version__, "in": _home(str(Path(__file__).parents[2]))},
        "Python": {
            "version": f"{platform.python_implementation()} {platform.python_version()}",
            "executable": _home(sys.executable),
        },
        "distributions": {name: _version(name) for name in (*_DISTRIBUTIONS, *_of_all("distributions"), *_OPTIONAL)},
        "machine": _machine(),
        "limits": _limits(),
        "devices": _devices(),
        "variables": shown_variables(os.environ),
    }


def _of_all(field: str) -> Iterator[str]:
    for framework in registered().frameworks.values():
        yield from getattr(framework, field)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "-"


def _machine() -> dict[str, str]:
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "C library": " ".join(platform.libc_ver()),
        "container": "yes" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else "not seen",
        "cores": f"{available_cores()} of {os.cpu_count()} for this process",
        "memory": f"{available_memory() / 1e9:.1f} GB free",
        "running jobs": str(len(running())),
    }


def _limits() -> dict[str, str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = {"open files": f"{soft}, at most {hard}"}
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    found["locked memory"] = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked / 1e6:.1f} MB"
    for folder in (str(SHM_FOLDER), tempfile.gettempdir()):
        usage = shutil.disk_usage(folder)
        found[_home(folder)] = f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free"
    return found


def _devices() -> dict[str, str]:
    cuda = cuda_devices()
    names = " ".join(cuda.names) if cuda.number else f"none: {cuda.why_none()}"
    found = {"CUDA": names}
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists():
        found["driver"] = driver.read_text(errors="replace").partition("\n")[0]
    return found


def shown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect jobs; possible secrets are hidden."""
    found = {}
    prefixes = "|".join(map(re.escape, (*_PREFIXES, *_of_all("variables"))))
    shown = re.compile(rf"(?:{prefixes})(?:_.*|RC)?|{_OTHERS}")
    for name in sorted(filter(shown.fullmatch, environment)):
        value = _LOGIN.sub("(hidden)", environment[name])[:_CHARACTERS]
        found[name] = "(hidden)" if _SECRET.search(name) else _home(value)
    return found


def _home(text: str) -> str:
    """Replace the home folder, which contains the user's name, by ``~``."""
    home = os.path.expanduser("~")
    return text if home == "/" else re.sub(rf"{re.escape(home)}(?=/|:|$)", "~", text)


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """Print versions, machine, limits, devices and relevant variables, for a bug report.

    Only variables about jobs, frameworks and threads are shown. Values of variables whose names
    suggest keys, tokens or passwords are hidden. Read the output before you publish it.
    """
    report = environment_report()
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for heading, values in report.items():
        click.echo(heading)
        for name, value in values.items():
            click.echo(f"  {name:{max(map(len, values))}}  {value}".rstrip())
