"""The names of the original Platoon; its users only change their import lines.

The modules are the original's: `channel`, `param_sync`, and with Theano `training.global_dynamics`
and `ops`. Importing this package applies `platoon_base.compat`, which Theano needs on current
Python. A script that imports Theano first must be started by ``platoon run``.
"""

from platoon_base import compat

compat.apply()

from platoon_base.platoon_api.channel import Controller, Worker  # noqa: E402
from platoon_base.platoon_api.param_sync import ASGD, EASGD, ParamSyncRule  # noqa: E402

__all__ = ["ASGD", "EASGD", "Controller", "ParamSyncRule", "Worker"]
