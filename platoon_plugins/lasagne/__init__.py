"""Data parallelism for Lasagne scripts: wrap the updates and keep the training loop."""

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

# Lasagne must be imported after this, by this package or by the script.
compat.apply()

from platoon_base.theano_ops import function, scatter  # noqa: E402
from platoon_plugins.lasagne.data import iterate_minibatches, shard  # noqa: E402
from platoon_plugins.lasagne.evaluation import evaluate  # noqa: E402
from platoon_plugins.lasagne.gradients import all_reduce_grads  # noqa: E402
from platoon_plugins.lasagne.learning_rate import (  # noqa: E402
    LearningRateWarmup,
    scale_learning_rate,
    scale_schedule,
)
from platoon_plugins.lasagne.prepared import prepare  # noqa: E402
from platoon_plugins.lasagne.stopping import StopOnPatience  # noqa: E402
from platoon_plugins.lasagne.sync import sync_updates  # noqa: E402
from platoon_plugins.lasagne.training import finish_training  # noqa: E402

__all__ = [
    "ASGD",
    "EAMSGD",
    "EASGD",
    "AveragedEASGD",
    "CenterMomentum",
    "DiLoCo",
    "GoSGD",
    "LearningRateWarmup",
    "LocalSGD",
    "SlowMo",
    "StopOnPatience",
    "all_reduce_grads",
    "evaluate",
    "finish_training",
    "function",
    "is_main",
    "iterate_minibatches",
    "prepare",
    "rank",
    "scale_learning_rate",
    "scale_schedule",
    "scatter",
    "shard",
    "sync_updates",
    "world_size",
]
