"""Limits of the system that a job checks: open files, memory, cores, room on the disk."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from platoon_base.errors import ConfigurationError

# Windows has none; commands are imported there to report that.
with contextlib.suppress(ImportError):
    import resource

_PROBE_BYTES = 1 << 16
_FIRST_DESCRIPTORS = 1 << 16
_OLD_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes")  # Names in control groups of version 1.


def require_descriptors(more: int) -> None:
    """Raise the soft limit to allow ``more`` open files; ConfigurationError if that fails."""
    # At the limit ZeroMQ would abort the process.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = more
    with contextlib.suppress(OSError):  # Without /proc the few files that are open do not count.
        needed += len(os.listdir("/proc/self/fd"))
    if resource.RLIM_INFINITY != soft < needed:
        if resource.RLIM_INFINITY != hard < needed:
            raise ConfigurationError(
                f"got a limit of {hard} open files (ulimit -Hn), and this process needs {needed}: "
                "raise it in /etc/security/limits.conf or with `docker run --ulimit nofile=...`, "
                "or start fewer workers"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def raise_descriptors() -> int:
    """Raise the soft limit of open files to the hard one, at most 65,536; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FIRST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _FIRST_DESCRIPTORS)
    if resource.RLIM_INFINITY != soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    return limit if soft == resource.RLIM_INFINITY else soft


def no_descriptor_text(exc: OSError) -> str:
    """Return what to do about too many open files; '' for any other error."""
    if exc.errno != errno.EMFILE:
        return ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process has reached its limit of {soft} open files and sockets (ulimit -n; at most "
        f"{hard}, ulimit -Hn): raise the limit in the shell that starts it, beyond the maximum in "
        "/etc/security/limits.conf or with `docker run --ulimit nofile=...`, or start fewer "
        "workers"
    )


def limit_text(exc: BaseException) -> str:
    """Return the system limit that caused an error, and what to do; '' for any other error."""
    if isinstance(exc, RuntimeError) and "can't start new thread" in str(exc):
        exc = OSError(errno.EAGAIN, str(exc))
    if not isinstance(exc, OSError):
        return ""
    path = exc.filename if isinstance(exc.filename, str) else ""
    where = f" {path}" if path else ""
    if exc.errno == errno.EAGAIN:
        return (
            f"cannot start another process or thread ({exc.strerror}): this user has reached "
            "`ulimit -u`, or its control group its pids.max (docker run --pids-limit); raise the "
            "limit, or start fewer workers"
        )
    if exc.errno == errno.EFBIG:
        size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return f"a file{where} would be larger than {size} bytes, the limit of this shell: raise it (ulimit -f)"
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"there is no room for{where or ' a file'} ({exc.strerror}{_inodes_text(path)}): make room there"
    return no_descriptor_text(exc)


def _inodes_text(path: str) -> str:
    """Return a hint if a file system has free bytes but no free inodes."""
    with contextlib.suppress(OSError):
        room = os.statvfs(os.path.dirname(os.path.abspath(path)))
        if path and room.f_files and not room.f_favail and room.f_bavail:
            return "; no inodes are left, so remove files"
    return ""


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this control group (or machine) died from a lack of memory."""
    files = []
    for line in _lines(proc / "self" / "cgroup"):
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "memory"):
            name = "memory.oom_control" if kinds else "memory.events"
            files += [cgroups / kinds / place / name for place in (path.lstrip("/"), "")]
    for file in (*files, proc / "vmstat"):
        for count in (line.split() for line in _lines(file)):
            if count[:1] == ["oom_kill"]:
                return int(count[1])
    return 0


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that are available here and in our control group."""
    found = [sys.maxsize]
    with contextlib.suppress(OSError):
        lines = dict(re.findall(r"^(\w+): +(\d+) kB$", (proc / "meminfo").read_text(), re.MULTILINE))
        found.append(1024 * (int(lines.get("MemAvailable", sys.maxsize)) + int(lines.get("SwapFree", 0))))
    for line in _lines(proc / "self" / "cgroup"):
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "memory"):
            most, used = ("memory.max", "memory.current") if not kinds else _OLD_NAMES
            folder = cgroups / kinds
            # In a container, the mount shows its own group.
            for place in (folder / path.lstrip("/"), folder):
                with contextlib.suppress(OSError, ValueError):  # "max" is no number
                    free = int((place / most).read_text()) - int((place / used).read_text())
                    found.append(free + _cached_bytes(place / "memory.stat"))
    return max(0, min(found))


def available_cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores processes here can use, at least 1: affinity and smallest quota."""
    found = [float(len(os.sched_getaffinity(0)))]
    for line in _lines(proc / "self" / "cgroup"):
        _, kinds, path = line.split(":", 2)
        if kinds and "cpu" not in kinds.split(","):
            continue
        folder = cgroups / kinds
        here = folder / path.lstrip("/")
        for place in (here, *here.parents) if folder in here.parents else (folder,):
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # "max" is no number
                if kinds:
                    quota, period = (int((place / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
                else:
                    quota, period = map(int, (place / "cpu.max").read_text().split())
                if quota > 0:
                    found.append(quota / period)
            if place == folder:
                break
    return max(1, math.ceil(min(found) - 0.01))


def _cached_bytes(stat: Path) -> int:
    """Return the bytes of cached files, which count as used but can be dropped."""
    pairs = [line.split() for line in _lines(stat)]
    return sum(int(value) for name, value in pairs if name in ("active_file", "inactive_file"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def require_room(folder: Path, what: str) -> None:
    """Make a folder if needed; raise ConfigurationError unless files can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        raise ConfigurationError(
            f"cannot write {what} to {folder}: {exc.strerror or exc} "
            f"({shutil.disk_usage(there).free / 1e6:.1f} MB free); make room, or name "
            "another folder"
        ) from exc
