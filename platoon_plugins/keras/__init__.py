"""Data-parallel training of Keras models, on Keras 2.3.1 with Theano and on Keras 3."""

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

# This must run before Keras is imported.
compat.apply()

from platoon_plugins.keras.importing import require_backend  # noqa: E402

require_backend()

from platoon_plugins.keras.data import shard  # noqa: E402
from platoon_plugins.keras.gradients import DistributedOptimizer  # noqa: E402
from platoon_plugins.keras.learning_rate import LearningRateWarmup, scale_learning_rate, scale_schedule  # noqa: E402
from platoon_plugins.keras.marks import refuse_unwrapped_copies  # noqa: E402
from platoon_plugins.keras.model_state import broadcast_variables  # noqa: E402
from platoon_plugins.keras.saving import watch_saving  # noqa: E402
from platoon_plugins.keras.statistics import watch_batch_normalization  # noqa: E402
from platoon_plugins.keras.sync import (  # noqa: E402
    LEADER_ONLY,
    distribute,
    watch_fits,
)
from platoon_plugins.keras.whole_sets import evaluate, predict  # noqa: E402

if TYPE_CHECKING:
    from platoon_plugins.keras.prepared import prepare

refuse_unwrapped_copies()
watch_batch_normalization()
watch_fits()
watch_saving()

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
