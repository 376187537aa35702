"""Cooperating worker processes for training scripts: `connect` joins the job that ``platoon launch`` started."""

from platoon_base.job.joining import connect
from platoon_base.rules import ASGD, EAMSGD, EASGD, CenterMomentum, DiLoCo, LocalSGD, Rule, SlowMo
from platoon_base.worker.handle import Worker

__all__ = [
    "ASGD",
    "EAMSGD",
    "EASGD",
    "CenterMomentum",
    "DiLoCo",
    "LocalSGD",
    "Rule",
    "SlowMo",
    "Worker",
    "__version__",
    "connect",
]

__version__ = "0.1.0.dev0"
