"""Arguments of the original's versions from 2015 to 2016."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from platoon_base.errors import ConfigurationError

__all__ = ["ports_of", "without_job_name"]


def ports_of(control_port: int, data_port: int | None, cport: int | None, port: int | None) -> tuple[int, int | None]:
    """Return control port and data port, which 2016 calls ``cport`` and ``port``."""
    if port is not None and data_port not in (None, port):
        raise ConfigurationError(
            f"got data_port={data_port} and port={port}, which both name the data port: pass one of them"
        )
    return (control_port if cport is None else cport), (data_port if port is None else port)


def without_job_name(init_shared_params: Callable[..., None]) -> Callable[..., None]:
    """Drop the job name, the first argument of `init_shared_params` in early 2016."""

    @functools.wraps(init_shared_params)
    def call(worker: Any, *args: Any, **named: Any) -> None:
        named.pop("job_name", None)
        init_shared_params(worker, *(args[1:] if args and isinstance(args[0], str) else args), **named)

    return call
