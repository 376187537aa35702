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


COMPILER = Group("C++ compiler", ("g++",), "Theano cannot compile")
# Only Debian's own interpreter takes these from separate packages.
OF_DEBIANS_PYTHON = (
    Group("Debian's venv module", ("python3.11-venv",), ".venv was created without it"),
    Group("Python's headers", ("python3.11-dev",), "neither Theano nor the C extension can compile"),
)
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
GROUPS = (COMPILER, *OPTIONAL)
if os.path.realpath(sys._base_executable).startswith("/usr/bin/"):  # type: ignore[attr-defined]
    GROUPS = (COMPILER, *OF_DEBIANS_PYTHON, *OPTIONAL)


def missing_packages() -> list[str]:
    """Names dpkg does not know as installed; without dpkg nothing is missing, as nothing can be installed."""
    if shutil.which("dpkg-query") is None:
        return []
    wanted = [package for group in GROUPS for package in group.packages]
    query = ["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *wanted]
    lines = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    installed = {line.split()[0] for line in lines if line.endswith(" installed")}
    return [package for package in wanted if package not in installed]


def groups_without(missing: list[str]) -> list[Group]:
    return [group for group in GROUPS if set(group.packages) & set(missing)]


def apt_line(packages: list[str]) -> str:
    """The one command that root, or a user with sudo, has to run."""
    sudo = "sudo " if os.geteuid() != 0 and shutil.which("sudo") else ""
    return f"{sudo}apt-get update && {sudo}apt-get install -y --no-install-recommends {' '.join(packages)}"


def install(packages: list[str]) -> tuple[list[str], str]:
    """Install what can be installed; return what is still missing, which may be optional, and why."""
    if not packages:
        return [], ""
    if shutil.which("apt-get") is None:
        return packages, "there is no apt-get"
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if prefix and not (shutil.which("sudo") and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0):
        return packages, "you are not root, and there is no sudo without a password"
    print(f"setup: installing with apt: {' '.join(packages)}", flush=True)
    updated = _apt(prefix, "update", "-o", "APT::Update::Error-Mode=any")
    if not _apt_install(prefix, packages) and updated:
        # One unknown package makes apt refuse all: give each group its own chance.
        for group in groups_without(packages):
            _apt_install(prefix, [package for package in group.packages if package in packages])
    left = missing_packages()
    return left, "apt-get failed (its messages are above)" if left else ""


def _apt_install(prefix: list[str], packages: list[str]) -> bool:
    return _apt(prefix, "install", "-y", "--no-install-recommends", *packages)


def _apt(prefix: list[str], *arguments: str) -> bool:
    options = ["-qq", "-o", "Dpkg::Use-Pty=0", "-o", "Acquire::http::Timeout=30"]
    command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *options, *arguments]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        print("\n".join(result.stdout.splitlines()[-4:]), file=sys.stderr, flush=True)
    return result.returncode == 0
