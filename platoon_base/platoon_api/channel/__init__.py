"""The original's `Controller` and `Worker`, and their first names `Lieutenant` and `Soldier`, of 2015 and 2016."""

from __future__ import annotations

from typing import Any

from platoon_base.platoon_api.arguments import CONTROL_PORT
from platoon_base.platoon_api.channel.controller import Controller
from platoon_base.platoon_api.channel.worker import Worker

__all__ = ["Controller", "Lieutenant", "Soldier", "Worker"]


class Soldier(Worker):
    """A `Worker` whose arguments have their old names.

    Parameters
    ----------
    port : int
        The data port if there is a ``cport``, otherwise the control port.
    cport : int, optional
        The control port.
    *args, **options
        Other arguments of `Worker`.
    """

    def __init__(self, port: int | None = None, *args: Any, cport: int | None = None, **options: Any) -> None:
        control_port = options.pop("control_port", None) if cport is None else cport
        if control_port is None:
            control_port, port = (CONTROL_PORT if port is None else port), None
        if port is not None:
            options["port"] = port
        super().__init__(control_port, *args, **options)


class Lieutenant(Controller):
    """A controller that listens after `init_control`; its workers are started by hand."""

    def __init__(self) -> None:
        super().__init__(control_port=None)
