"""The original's `Controller` and `Worker`, and their first names `Lieutenant` and `Soldier`."""

from platoon_base.platoon_api.channel.controller import Controller
from platoon_base.platoon_api.channel.first_version import Lieutenant, Soldier
from platoon_base.platoon_api.channel.worker import Worker

__all__ = ["Controller", "Lieutenant", "Soldier", "Worker"]
