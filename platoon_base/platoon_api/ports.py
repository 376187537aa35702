"""Command-line options for the ports of controller and worker, which name a job and its data."""

from __future__ import annotations

import argparse
from typing import Any

from platoon_base.errors import ConfigurationError

__all__ = ["CONTROL_PORT", "DATA_HWM", "add_port_options", "port_arguments", "require_port"]

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
