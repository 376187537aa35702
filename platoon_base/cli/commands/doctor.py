"""``platoon doctor``: what is installed, what works, and how to install the rest."""

from __future__ import annotations

import ctypes.util
import json
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator

import click

from platoon_base.centers.host_kernels import HAVE_FUSED
from platoon_base.collectives.host_exchange import HAVE_FUSED as HAVE_FUSED_COLLECTIVES
from platoon_base.compression.codecs import EXTENSION as CODECS
from platoon_base.data.excerpt import HAVE_FUSED as HAVE_FUSED_EXCERPT
from platoon_base.devices.cuda import nvrtc_version
from platoon_base.devices.discovery import can_share_center, cuda_devices, list_devices
from platoon_base.devices.nccl import load_nccl
from platoon_base.errors import BackendUnavailableError
from platoon_base.frameworks.checks import Check, importable, installed
from platoon_base.frameworks.registered import GROUP, registered
from platoon_base.shm.segments import SHM_FOLDER
from platoon_base.system.environment import NO_KERNELS

_OPENBLAS = "apt-get install libopenblas-dev"


def checks() -> Iterator[Check]:
    """Yield the checks one after the other; importing a framework takes seconds."""
    for group, needed, found in (
        ("this package", True, _package()),
        ("this machine", False, _machine()),
        ("frameworks", False, framework_checks()),
        ("devices", False, _of_devices()),
    ):
        for check in found:
            yield check._replace(group=group, needed=needed or check.needed)


def _package() -> Iterator[Check]:
    yield Check("Python", True, platform.python_version())
    for name in ("numpy", "pyzmq", "posix_ipc", "msgspec"):
        yield installed(name, "pip install platoon-plugins")
    yield _compiled("fused kernels", HAVE_FUSED)
    yield _compiled("all-reduce on the host", HAVE_FUSED_COLLECTIVES)
    yield _compiled("excerpts of data", HAVE_FUSED_EXCERPT)
    yield _compiled("compression between hosts", CODECS is not None)


def _machine() -> Iterator[Check]:
    yield _shared_memory()._replace(needed=True)
    yield _tool("C++ compiler for Theano", "g++", "apt-get install g++")._replace(goes_with="Theano")
    yield _openblas()._replace(goes_with="Theano")


def framework_checks() -> Iterator[Check]:
    """Yield the checks of all registered frameworks; each takes seconds."""
    found = registered()
    earlier: dict[str, Check] = {}
    for name, framework in found.frameworks.items():
        try:
            for check in framework.checks(earlier):
                earlier[check.name] = check
                yield check
        except Exception as exc:  # The check belongs to another project.
            remedy = f"report it to the project that defines the entry point {name!r} in the group {GROUP}"
            yield Check(name, False, f"its check failed: {type(exc).__name__}: {exc}", remedy)
    for name, why in found.broken.items():
        remedy = f"repair or uninstall the distribution that defines the entry point {name!r} in the group {GROUP}"
        yield Check(name, False, why, remedy)
    if not found.frameworks:
        yield Check(
            "adapters", False, "no framework is registered", "pip install --force-reinstall --no-deps platoon-plugins"
        )
    yield importable("mpi4py", "mpi4py", "pip install mpi4py")


def _of_devices() -> Iterator[Check]:
    yield from _devices()
    if cuda_devices().number:
        yield _nvrtc()
    yield _center()


def _compiled(name: str, found: bool) -> Check:
    if found:
        return Check(name, True, "C extension")
    if os.environ.get(NO_KERNELS):
        return Check(name, False, "switched off: NumPy is used instead", "unset PLATOON_NO_KERNELS")
    return Check(
        name,
        False,
        "not built: NumPy is used instead, several times slower",
        "install gcc, then pip install --force-reinstall --no-deps platoon-plugins",
    )


def _shared_memory() -> Check:
    try:
        room = os.statvfs(SHM_FOLDER)
    except OSError as exc:
        return Check("shared memory", False, str(exc), f"mount a tmpfs on {SHM_FOLDER}")
    free, total = room.f_bavail * room.f_frsize / 1e9, room.f_blocks * room.f_frsize / 1e9
    return Check("shared memory", True, f"{free:.1f} of {total:.1f} GB free in {SHM_FOLDER}")


def _tool(name: str, command: str, remedy: str) -> Check:
    path = shutil.which(command)
    return Check(name, True, path) if path else Check(name, False, "not found", remedy, absent=True)


def _openblas() -> Check:
    library = ctypes.util.find_library("openblas")
    if library:
        return Check("OpenBLAS for Theano", True, library)
    return Check("OpenBLAS for Theano", False, "not found: dot products are slow", _OPENBLAS, absent=True)


def _devices() -> Iterator[Check]:
    try:
        devices = list_devices()
    except BackendUnavailableError as exc:
        remedy = "on Debian 12 apt-get install python3-pygpu libgpuarray-dev, and use Debian's Python 3.11"
        yield Check("pygpu", False, str(exc), remedy, goes_with="Theano", absent=True)
        return
    yield Check("pygpu", True, "devices " + " ".join(devices))
    if not any(device.startswith("cuda") for device in devices):
        why, remedy = "no device: computations run on the CPU", "install an NVIDIA GPU and its driver"
        yield Check("CUDA", False, why, remedy, absent=True)
    else:
        yield _nccl()
    if not any(device.startswith("opencl") for device in devices):
        remedy = "apt-get install pocl-opencl-icd ocl-icd-libopencl1 libclblast1"
        yield Check("OpenCL", False, "no device", remedy, goes_with="Theano", absent=True)


def _nccl() -> Check:
    try:
        load_nccl()
    except BackendUnavailableError as exc:
        why, _, remedy = str(exc).rpartition(": ")
        return Check("NCCL", False, f"{why}: all-reduces use host memory", remedy)
    return Check("NCCL", True, "all-reduces between GPUs")


def _nvrtc() -> Check:
    try:
        version = nvrtc_version()
    except BackendUnavailableError:
        why = f"not installed: the center of {_users_of_nvrtc()} is in shared memory"
        return Check("NVRTC", False, why, "pip install 'platoon-plugins[cuda]'")
    return Check("NVRTC", True, f"{version}: kernels for the center of {_users_of_nvrtc()}")


def _users_of_nvrtc() -> str:
    return ", ".join(registered().texts("center_on_gpu")) or "frameworks with CUDA"


def _center() -> Check:
    cuda = cuda_devices()
    reason = can_share_center(cuda.names) if cuda.number else cuda.why_none()
    if not reason:
        return Check("center in GPU memory", True, f"yes, shared by {' '.join(cuda.names)}")
    remedy = "leave one of them out with CUDA_VISIBLE_DEVICES; " if cuda.number else ""
    remedy += "shared memory is used instead"
    return Check("center in GPU memory", False, f"no, because {reason}", remedy, absent=not cuda.number)


_NAME = 24
_INDENT = 4 + _NAME


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list with an entry for each check.")
@click.option("--all", "every", is_flag=True, help="Also show how to install everything that is missing.")
def command(as_json: bool, every: bool) -> None:
    """Print what is installed, which back ends work, and how to install the rest.

    Each framework is imported, which takes seconds. One working framework is enough.
    """
    if as_json:
        click.echo(json.dumps([check._asdict() for check in checks()], indent=2))
        return
    found = []
    group = ""
    for check in checks():
        found.append(check)
        if _is_absent(check, found) and not every:
            continue
        if check.group != group:
            group = check.group
            click.echo(click.style(group, bold=True))
        _print(check)
    absent = [check for check in found if _is_absent(check, found)]
    for check in [each for each in found if each.absent and each not in absent and not every]:
        # A requirement of a framework that was found later.
        _print(check)
    if absent and not every:
        names = ", ".join(check.name for check in absent)
        for line in _broken(f"not installed: {names} (platoon doctor --all shows how to install them)"):
            click.echo(line)
    shown = [check for check in found if every or check not in absent]
    missing = [check for check in shown if not check.works]
    text = f"{len(shown) - len(missing)} of {len(shown)} checks are ok"
    needed = [check.name for check in missing if check.needed]
    if needed:
        text += f"; jobs need {', '.join(needed)}: repair that first"
    elif missing:
        text += "; the others are optional: install what your scripts import"
    frameworks = [check for check in found if check.group == "frameworks" and check.name != "mpi4py"]
    if frameworks and not any(check.works for check in frameworks):
        text += "; no framework works, so only loops on NumPy arrays can be trained"
    click.echo(text)


def _is_absent(check: Check, found: list[Check]) -> bool:
    """Return whether a missing package is not needed by anything found."""
    framework = next((other for other in found if other.name == check.goes_with), None)
    return check.absent and not check.needed and (framework is None or framework.absent)


def _print(check: Check) -> None:
    """Print a check and, below, its remedy; on a terminal break them between words."""
    mark = (
        click.style("ok  ", fg="green") if check.works else click.style("no  ", fg="red" if check.needed else "yellow")
    )
    first, *rest = _broken(check.finding)
    click.echo(f"{mark}{check.name:{_NAME - 1}} {first}")
    for line in rest + (_broken(f"-> {check.remedy}") if check.remedy else []):
        click.echo(f"{'':{_INDENT}}{line}")


def _broken(text: str) -> list[str]:
    if not sys.stdout.isatty():
        return [text]
    width = max(20, shutil.get_terminal_size().columns - _INDENT)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
