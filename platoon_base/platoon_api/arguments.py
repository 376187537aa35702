"""Arguments of the original: ports and their options, those of 2015 and 2016, handles of workers."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import connect
from platoon_base.worker.handle import Worker

CONTROL_PORT, DATA_HWM = 5567, 10


def add_port_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--control-port", type=int, default=CONTROL_PORT, help="TCP port of the controller.  [%(default)s]"
    )
    parser.add_argument("--data-port", type=int, default=None, help="TCP port of the controller's mini-batches.")
    parser.add_argument(
        "--data-hwm",
        type=int,
        default=DATA_HWM,
        help="Mini-batches that may wait in a worker; no effect on a controller.  [%(default)s]",
    )


def port_arguments(args: argparse.Namespace) -> dict[str, Any]:
    return {"control_port": args.control_port, "data_port": args.data_port, "data_hwm": args.data_hwm}


def require_port(port: Any) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigurationError(f"got port {port!r}: it must be a number from 1 to 65535, such as {CONTROL_PORT}")


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


def handle_of(worker: Any = None) -> Worker:
    """Return the handle of a worker of `platoon_api`, a handle itself, or that of ``connect()``."""
    found: Worker = connect() if worker is None else getattr(worker, "handle", worker)
    return found


def context_of_device() -> Any:
    from theano.gpuarray.type import get_context, list_contexts

    return get_context(None) if None in list_contexts() else None
