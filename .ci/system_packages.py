"""Debian packages the environment builds on: which are missing, and their installation with apt where possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import NamedTuple


class Group(NamedTuple):
    """Packages that bring one thing together."""

    gives: str
    packages: tuple[str, ...]
    without: str


class AptResult(NamedTuple):
    """What is still missing after apt had its chance, and why."""

    missing: list[str]
    reason: str


DEBIAN_VENV = Group("Debian's venv module", ("python3.11-venv",), ".venv was created without it")
DEBIAN_HEADERS = Group("Python's headers", ("python3.11-dev",), "neither Theano nor the C extension can compile")
COMPILER = Group("C++ compiler", ("g++",), "Theano cannot compile")
OPTIONAL = (
    Group("OpenBLAS", ("libopenblas-dev",), "Theano uses NumPy for matrix products"),
    Group("pygpu", ("python3-pygpu", "libgpuarray-dev"), "tests of device arrays are skipped"),
    Group(
        "OpenCL on the CPU",
        ("pocl-opencl-icd", "ocl-icd-libopencl1", "libclblast1"),
        "tests that need an OpenCL device are skipped",
    ),
    Group("OpenMPI", ("openmpi-bin", "libopenmpi-dev"), "tests over MPI are skipped"),
    Group("tmux", ("tmux",), "tests of what a terminal shows are skipped"),
)


def is_debian_python() -> bool:
    """Only Debian's own interpreter takes its venv module and headers from separate packages."""
    return os.path.realpath(sys._base_executable).startswith("/usr/bin/")  # type: ignore[attr-defined]


def groups() -> list[Group]:
    first = [COMPILER, DEBIAN_VENV, DEBIAN_HEADERS] if is_debian_python() else [COMPILER]
    return [*first, *OPTIONAL]


def missing_packages() -> list[str]:
    """Names dpkg does not know as installed; without dpkg nothing is missing, as nothing can be installed."""
    if shutil.which("dpkg-query") is None:
        return []
    wanted = [package for group in groups() for package in group.packages]
    query = ["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *wanted]
    lines = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    installed = {line.split()[0] for line in lines if line.endswith(" installed")}
    return [package for package in wanted if package not in installed]


def apt_line(packages: list[str]) -> str:
    """The one command that root, or a user with sudo, has to run."""
    sudo = "sudo " if os.geteuid() != 0 and shutil.which("sudo") else ""
    return f"{sudo}apt-get update && {sudo}apt-get install -y --no-install-recommends {' '.join(packages)}"


def install(packages: list[str]) -> AptResult:
    """Install what can be installed; never raises, since what is missing may be optional."""
    if not packages:
        return AptResult([], "")
    if shutil.which("apt-get") is None:
        return AptResult(packages, "there is no apt-get")
    prefix = _root_prefix()
    if prefix is None:
        return AptResult(packages, "you are not root, and there is no sudo without a password")
    print(f"setup: installing with apt: {' '.join(packages)}", flush=True)
    update_failed = _apt(prefix, "update", "-o", "APT::Update::Error-Mode=any") != 0
    if _apt_install(prefix, packages) != 0 and not update_failed:
        # One unknown package makes apt refuse all: give each group its own chance.
        for group in groups():
            wanted = [package for package in group.packages if package in packages]
            if wanted:
                _apt_install(prefix, wanted)
    left = missing_packages()
    return AptResult(left, "apt-get failed (its messages are above)" if left else "")


def _root_prefix() -> list[str] | None:
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def _apt_install(prefix: list[str], packages: list[str]) -> int:
    return _apt(prefix, "install", "-y", "--no-install-recommends", *packages)


def _apt(prefix: list[str], *arguments: str) -> int:
    options = ["-qq", "-o", "Dpkg::Use-Pty=0", "-o", "Acquire::http::Timeout=30"]
    command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *options, *arguments]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        print("\n".join(result.stdout.splitlines()[-4:]), file=sys.stderr, flush=True)
    return result.returncode
