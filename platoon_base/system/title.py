"""The titles of processes, as `ps`, `top` and `nvidia-smi` show them."""

from __future__ import annotations

import os

from platoon_base.system.text import legible

__all__ = ["set_title"]

_KEEP_ENVIRONMENT = "SPT_NOENV"  # else a long title lies over what /proc/PID/environ shows


def set_title(program: str, role: str = "") -> None:
    """Show this process as ``platoon: PROGRAM ROLE``, and in `top` by its role first; without setproctitle do nothing.

    Parameters
    ----------
    program : str
        Such as ``"train.py"``.
    role : str
        Such as ``"rank 1 cpu"``.
    """
    try:
        import setproctitle
    except ImportError:  # a title is only a help for people
        return
    program = legible(program).replace("\0", "")
    was_set = _KEEP_ENVIRONMENT in os.environ
    os.environ.setdefault(_KEEP_ENVIRONMENT, "1")
    try:
        setproctitle.setproctitle(f"platoon: {program} {role}".rstrip())
    finally:
        if not was_set:
            del os.environ[_KEEP_ENVIRONMENT]
    device = role.rpartition(" ")[2] if role.startswith("rank ") else ""
    setproctitle.setthreadtitle(f"{role.removesuffix(f' {device}')} {program}".strip())
