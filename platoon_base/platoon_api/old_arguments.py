"""Arguments as versions of the original between 2015 and 2016 have them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from platoon_base.errors import ConfigurationError

__all__ = ["ports_of", "without_job_name"]


def ports_of(control_port: int, data_port: int | None, cport: int | None, port: int | None) -> tuple[int, int | None]:
    """Return control port and data port: ``cport`` and ``port`` are what 2016 calls them.

    Raises
    ------
    ConfigurationError
        If ``data_port`` and ``port`` name different ones.
    """
    if port is not None and data_port not in (None, port):
        raise ConfigurationError(
            f"got data_port={data_port} and port={port}: both name the data port; give one of them"
        )
    return (control_port if cport is None else cport), (data_port if port is None else port)


def without_job_name(init_shared_params: Callable[..., None]) -> Callable[..., None]:
    """Drop the job name that `init_shared_params` begins with in early 2016; the job has a name of its own here."""

    @functools.wraps(init_shared_params)
    def call(worker: Any, *args: Any, **named: Any) -> None:
        named.pop("job_name", None)
        init_shared_params(worker, *(args[1:] if args and isinstance(args[0], str) else args), **named)

    return call
