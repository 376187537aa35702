"""The names of the first version, of 2015 and 2016."""

from __future__ import annotations

from platoon_base.platoon_api.channel.controller import Controller
from platoon_base.platoon_api.channel.worker import Worker

__all__ = ["Lieutenant", "Soldier"]

Soldier = Worker


class Lieutenant(Controller):
    """A controller that listens once `init_control` has told it where; its workers are started by hand."""

    def __init__(self) -> None:
        super().__init__(control_port=None)
