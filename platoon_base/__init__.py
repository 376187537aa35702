"""Cooperating worker processes for training scripts; `connect` joins the job of the launcher."""

from typing import TYPE_CHECKING

from platoon_base.system.imports import lazy_names

if TYPE_CHECKING:
    from platoon_base.cli.notebook import notebook_launcher
    from platoon_base.job.joining import connect, is_main, rank, world_size
    from platoon_base.rules import (
        ASGD,
        EAMSGD,
        EASGD,
        AveragedEASGD,
        CenterMomentum,
        DiLoCo,
        GoSGD,
        LocalSGD,
        Rule,
        SlowMo,
    )
    from platoon_base.worker.handle import Worker

__all__ = [
    "ASGD",
    "EAMSGD",
    "EASGD",
    "AveragedEASGD",
    "CenterMomentum",
    "DiLoCo",
    "GoSGD",
    "LocalSGD",
    "Rule",
    "SlowMo",
    "Worker",
    "__version__",
    "connect",
    "is_main",
    "notebook_launcher",
    "rank",
    "world_size",
]

__version__ = "0.1.0.dev0"

# Names are imported at their first use: ``platoon --help`` needs none of them, nor NumPy.
__getattr__ = lazy_names(
    __name__,
    {
        "platoon_base.job.joining": "connect is_main rank world_size",
        "platoon_base.cli.notebook": "notebook_launcher",
        "platoon_base.rules": "ASGD EAMSGD EASGD AveragedEASGD CenterMomentum DiLoCo GoSGD LocalSGD Rule SlowMo",
        "platoon_base.worker.handle": "Worker",
    },
    modules=("errors", "job", "rules", "worker"),
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
