"""Data-parallel training of Keras models, on Keras 2.3.1 with Theano and on Keras 3."""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

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
    notebook_launcher,
    rank,
    world_size,
)
from platoon_base.errors import BackendUnavailableError

# This must run before Keras is imported.
compat.apply()

_BACKENDS = ("torch", "jax", "tensorflow", "theano")


def _require_backend() -> None:
    """Import Keras; raise `BackendUnavailableError` if Keras or its back end is not installed."""
    try:
        importlib.import_module("keras")
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if missing == "keras":
            raise BackendUnavailableError(
                "Keras is not installed: pip install 'platoon-plugins[keras]', and torch, jax or tensorflow"
            ) from exc
        if missing not in _BACKENDS:
            raise
        usable = [name for name in _BACKENDS if name != missing and importlib.util.find_spec(name) is not None]
        chosen = os.environ.get("KERAS_BACKEND")
        why = f"KERAS_BACKEND={chosen}" if chosen else "its default, or keras.json"
        set_it = f"set KERAS_BACKEND={' or '.join(usable)}, which is installed, or " if usable else ""
        raise BackendUnavailableError(
            f"Keras uses {missing} ({why}), which is not installed: {set_it}pip install {missing}"
        ) from exc


_require_backend()

from platoon_plugins.keras.data import shard  # noqa: E402
from platoon_plugins.keras.gradients import DistributedOptimizer  # noqa: E402
from platoon_plugins.keras.learning_rate import LearningRateWarmup, scale_learning_rate, scale_schedule  # noqa: E402
from platoon_plugins.keras.model_state import broadcast_variables  # noqa: E402
from platoon_plugins.keras.patches import patch_keras  # noqa: E402
from platoon_plugins.keras.sync import LEADER_ONLY, distribute  # noqa: E402
from platoon_plugins.keras.whole_sets import evaluate, predict  # noqa: E402

if TYPE_CHECKING:
    from platoon_plugins.keras.prepared import prepare

patch_keras()

__all__ = [
    "ASGD",
    "EAMSGD",
    "EASGD",
    "LEADER_ONLY",
    "AveragedEASGD",
    "CenterMomentum",
    "DiLoCo",
    "DistributedOptimizer",
    "GoSGD",
    "LearningRateWarmup",
    "LocalSGD",
    "SlowMo",
    "broadcast_variables",
    "distribute",
    "evaluate",
    "is_main",
    "notebook_launcher",
    "predict",
    "prepare",
    "rank",
    "scale_learning_rate",
    "scale_schedule",
    "shard",
    "world_size",
]


def __getattr__(name: str) -> Any:
    if name != "prepare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Importing `prepared` seeds random generators, which scripts without `prepare` do not expect.
    from platoon_plugins.keras.prepared import prepare

    globals()[name] = prepare
    return prepare


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
