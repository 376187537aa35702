"""Data parallelism for Blocks scripts: extensions of MainLoop, a step rule, and sharded Fuel streams."""

from __future__ import annotations

import importlib
from typing import Any

from platoon_base import (
    ASGD,
    EAMSGD,
    EASGD,
    AveragedEASGD,
    CenterMomentum,
    DiLoCo,
    GoSGD,
    LocalSGD,
    SlowMo,
    compat,
    is_main,
    rank,
    world_size,
)
from platoon_base.errors import BackendUnavailableError

compat.apply()  # Blocks and Fuel must be imported after this, by this package or by the script.

# Each name is imported at its first use, so that shard_stream works without Blocks.
_MODULES = {
    "AllReduceGradients": "gradients",
    "DistributedMonitoring": "evaluation",
    "DistributedTrainingMonitoring": "evaluation",
    "LEADER_ONLY": "extensions",
    "LearningRateWarmup": "learning_rate",
    "ParameterSync": "sync",
    "ShardedScheme": "schemes",
    "StopTogether": "stopping",
    "prepare": "prepared",
    "register_aggregation": "aggregation",
    "scale_learning_rate": "learning_rate",
    "scale_schedule": "learning_rate",
    "shard_stream": "data",
}

__all__ = [
    "ASGD",
    "EAMSGD",
    "EASGD",
    "AveragedEASGD",
    "CenterMomentum",
    "DiLoCo",
    "GoSGD",
    "LocalSGD",
    "SlowMo",
    "is_main",
    "rank",
    "world_size",
    *_MODULES,
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as exc:
        lacks = (exc.name or "").partition(".")[0]
        if lacks not in ("blocks", "fuel"):
            raise
        raise BackendUnavailableError(
            f"{name} needs {lacks.capitalize()}, which is not installed: `platoon doctor` shows how to install it"
        ) from exc
    globals()[name] = found
    return found
