"""The names of the first version, of 2015 and 2016."""

from __future__ import annotations

from typing import Any

from platoon_base.platoon_api.channel.controller import Controller
from platoon_base.platoon_api.channel.worker import Worker
from platoon_base.platoon_api.ports import CONTROL_PORT

__all__ = ["Lieutenant", "Soldier"]


class Soldier(Worker):
    """A worker, whose first argument has its old name.

    Parameters
    ----------
    port : int
        The same as ``control_port``, which does too.
    *args, **options
        The others of `Worker`.
    """

    def __init__(self, port: int = CONTROL_PORT, *args: Any, **options: Any) -> None:
        super().__init__(options.pop("control_port", port), *args, **options)


class Lieutenant(Controller):
    """A controller that listens once `init_control` has told it where; its workers are started by hand."""

    def __init__(self) -> None:
        super().__init__(control_port=None)
