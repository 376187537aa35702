"""Ends a process whose launcher is gone: interrupts it, for it may save, and kills it later.

Workers detect the loss in most of their calls. A thread detects it for those that make none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from platoon_base.system.environment import JOB
from platoon_base.system.job_paths import path_of
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 1.0
_found_out = threading.Event()
_watched_pid = 0  # This process has the thread; a forked child has none.


class OrphanPolicy(NamedTuple):
    """How a process ends; the times of workers, ``None``, are timeouts."""

    notice_s: float  # Time to detect the loss.
    own_end_s: float | None  # "orphan": time to exit after it has detected the loss
    first: signal.Signals  # The signal that is sent after that time.
    grace_s: float | None  # "grace": from the first signal to SIGKILL


WORKER = OrphanPolicy(4.0, None, signal.SIGINT, None)
DATA_SERVER = OrphanPolicy(0.0, 0.0, signal.SIGTERM, 2.0)


def end_with(launcher: int, patience: OrphanPolicy = WORKER) -> None:
    """End this process after process ``launcher`` of this host; a thread waits for that."""
    try:
        fd = os.pidfd_open(launcher)
    except ProcessLookupError:
        _start(lambda: True, patience)
        return
    except OSError as exc:
        log.warning("cannot watch the launcher (%s): this process will not notice its end", exc)
        return

    def has_ended() -> bool:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll()
        return True

    _start(has_ended, patience)


def end_without(alive: Callable[[], bool | None], patience: OrphanPolicy = WORKER) -> None:
    """End this process once ``alive()`` is False; None ends the watch."""

    def has_ended() -> bool:
        while answer := alive():
            time.sleep(_POLL_INTERVAL_S)
        return answer is False

    _start(has_ended, patience)


def found_out() -> None:
    """Record that this process has detected the loss of its launcher, and may be saving."""
    if not _found_out.is_set() and os.environ.get(JOB):
        with contextlib.suppress(OSError):
            path_of(os.environ[JOB], "detected", pid=os.getpid()).touch()
    _found_out.set()


def is_watched() -> bool:
    return _watched_pid == os.getpid()


def _start(has_ended: Callable[[], bool], patience: OrphanPolicy) -> None:
    global _watched_pid
    _watched_pid = os.getpid()
    threading.Thread(target=_watch, args=(has_ended, patience), name="platoon-orphan", daemon=True).start()


def _watch(has_ended: Callable[[], bool], patience: OrphanPolicy) -> None:
    global _watched_pid
    if not has_ended():
        _watched_pid = 0
        return
    grace_s = timeout("grace") if patience.grace_s is None else patience.grace_s
    if _found_out.wait(patience.notice_s):
        time.sleep(timeout("orphan") if patience.own_end_s is None else patience.own_end_s)
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        # A person decides about an interactive process.
        log.warning("the launcher of this job has ended, and the job with it")
        return
    log.warning(
        "the launcher of this job ended without notice, as after kill -9 or when memory runs "
        "out: this process gets %s, and is killed if it still runs after %g s",
        patience.first.name,
        grace_s,
    )
    _signal(patience.first)
    time.sleep(grace_s)
    _signal(signal.SIGKILL)


def _signal(number: signal.Signals) -> None:
    """Signal this process, and its descendants if it leads its process group."""
    pid = os.getpid()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgrp() == pid and os.getsid(0) == pid:  # It is not the group of a shell's job.
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
