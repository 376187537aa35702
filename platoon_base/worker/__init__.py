"""The handle of one worker, with its parameters, data and metrics."""

from typing import TYPE_CHECKING

from platoon_base.compression.codecs import ErrorFeedback
from platoon_base.parameters import Borrowed
from platoon_base.shm.phases import COMPUTE, LOADING, VALIDATION
from platoon_base.system.imports import lazy_names
from platoon_base.system.warn import warn_once
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.advisory_lock import AdvisoryLock
from platoon_base.worker.connection import BackEnds, Connection, Identity
from platoon_base.worker.handle import Worker
from platoon_base.worker.same_data import SAME_DATA_REMEDY, kind_of
from platoon_base.worker.shared_parameters import ON_NONFINITE, require_on_nonfinite

if TYPE_CHECKING:
    from platoon_base.collectives.flat import FlatBuffers
    from platoon_base.worker.agreed_state import RULES, State, agree, agree_in_step, default_rule_of, make_equal
    from platoon_base.worker.divergence import LossWatch
    from platoon_base.worker.fit import Fit
    from platoon_base.worker.flat_all_reduce import FlatAllReduce
    from platoon_base.worker.gathered_rows import gather_rows
    from platoon_base.worker.initial_values import (
        copy_first_values,
        copy_to_those_left,
        copy_values,
        require_same_layout,
        start_together,
    )
    from platoon_base.worker.prepared import begins_anew, center_is_on_device, require_weight, warn_if_alike
    from platoon_base.worker.same_values import require_same_values
    from platoon_base.worker.training_start import start_training
    from platoon_base.worker.value_checksums import checksums

__all__ = [
    "COMPUTE",
    "DEFAULT_TIMEOUT_S",
    "LOADING",
    "ON_NONFINITE",
    "RULES",
    "SAME_DATA_REMEDY",
    "VALIDATION",
    "AdvisoryLock",
    "BackEnds",
    "Borrowed",
    "Connection",
    "ErrorFeedback",
    "Fit",
    "FlatAllReduce",
    "FlatBuffers",
    "Identity",
    "LossWatch",
    "State",
    "Worker",
    "agree",
    "agree_in_step",
    "begins_anew",
    "center_is_on_device",
    "checksums",
    "copy_first_values",
    "copy_to_those_left",
    "copy_values",
    "default_rule_of",
    "gather_rows",
    "kind_of",
    "make_equal",
    "require_on_nonfinite",
    "require_same_layout",
    "require_same_values",
    "require_weight",
    "start_together",
    "start_training",
    "warn_if_alike",
    "warn_once",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Fit": "platoon_base.worker.fit",
        "FlatAllReduce": "platoon_base.worker.flat_all_reduce",
        "FlatBuffers": "platoon_base.collectives.flat",
        "LossWatch": "platoon_base.worker.divergence",
        "RULES": "platoon_base.worker.agreed_state",
        "State": "platoon_base.worker.agreed_state",
        "agree": "platoon_base.worker.agreed_state",
        "agree_in_step": "platoon_base.worker.agreed_state",
        "begins_anew": "platoon_base.worker.prepared",
        "center_is_on_device": "platoon_base.worker.prepared",
        "checksums": "platoon_base.worker.value_checksums",
        "copy_first_values": "platoon_base.worker.initial_values",
        "copy_to_those_left": "platoon_base.worker.initial_values",
        "copy_values": "platoon_base.worker.initial_values",
        "default_rule_of": "platoon_base.worker.agreed_state",
        "gather_rows": "platoon_base.worker.gathered_rows",
        "make_equal": "platoon_base.worker.agreed_state",
        "require_same_layout": "platoon_base.worker.initial_values",
        "require_same_values": "platoon_base.worker.same_values",
        "require_weight": "platoon_base.worker.prepared",
        "start_together": "platoon_base.worker.initial_values",
        "start_training": "platoon_base.worker.training_start",
        "warn_if_alike": "platoon_base.worker.prepared",
    },
)
