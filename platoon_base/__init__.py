"""Cooperating worker processes for training scripts: `connect` joins the job that ``platoon launch`` started."""

from platoon_base.job import connect
from platoon_base.rules import ASGD, EASGD, Rule
from platoon_base.worker import Worker

__all__ = ["ASGD", "EASGD", "Rule", "Worker", "__version__", "connect"]

__version__ = "0.1.0.dev0"
