"""The names of the original Platoon, as thin aliases: its users move by changing their import lines.

Modules are laid out as there: `channel` (`Worker`, `Controller`, and `Soldier` and `Lieutenant` of the first version),
`param_sync`, `training.global_dynamics` and `ops`. The last two need Theano.

Importing this package applies the shims of `platoon_base.compat`, without which Theano cannot be imported on today's
Python: scripts of 2016 have no line for it. A script that imports Theano first is started by ``platoon run``.
"""

from platoon_base import compat

compat.apply()

from platoon_base.platoon_api.channel import Controller, Worker  # noqa: E402
from platoon_base.platoon_api.param_sync import ASGD, EASGD, ParamSyncRule  # noqa: E402

__all__ = ["ASGD", "EASGD", "Controller", "ParamSyncRule", "Worker"]
