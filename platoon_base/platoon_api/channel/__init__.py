"""The original's two processes: `Controller`, which answers requests, and `Worker`, which trains and asks.

`Lieutenant` and `Soldier` are their names in the first version.
"""

from platoon_base.platoon_api.channel.controller import Controller
from platoon_base.platoon_api.channel.first_version import Lieutenant, Soldier
from platoon_base.platoon_api.channel.worker import Worker

__all__ = ["Controller", "Lieutenant", "Soldier", "Worker"]
