"""The handle of one worker, with its parameters, data and metrics."""

from typing import TYPE_CHECKING

from platoon_base.compression.codecs import ErrorFeedback
from platoon_base.fingerprint import SAME_DATA_REMEDY, kind_of
from platoon_base.parameters import Borrowed
from platoon_base.shm.phases import COMPUTE, LOADING, VALIDATION
from platoon_base.system.imports import lazy_names
from platoon_base.system.warn import warn_once
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker
from platoon_base.worker.shared_parameters import require_on_nonfinite

if TYPE_CHECKING:
    from platoon_base.collectives.weighted import MIN_WEIGHT, Header, HostAverage, WeightedAverage, sums_of, unit_of
    from platoon_base.worker.agreed_state import State, agree, agree_in_step, checksums, default_rule_of, make_equal
    from platoon_base.worker.all_values import BatchSizes, FlatAllReduce, gather_rows, require_same_values
    from platoon_base.worker.fit import (
        Fit,
        begins_anew,
        center_is_on_device,
        passes_before,
        require_weight,
        start_training,
        warn_if_alike,
    )
    from platoon_base.worker.initial_values import copy_first_values, copy_values, require_same_layout, start_together

__all__ = [
    "COMPUTE",
    "DEFAULT_TIMEOUT_S",
    "LOADING",
    "MIN_WEIGHT",
    "SAME_DATA_REMEDY",
    "VALIDATION",
    "BatchSizes",
    "Borrowed",
    "ErrorFeedback",
    "Fit",
    "FlatAllReduce",
    "Header",
    "HostAverage",
    "State",
    "WeightedAverage",
    "Worker",
    "agree",
    "agree_in_step",
    "begins_anew",
    "center_is_on_device",
    "checksums",
    "copy_first_values",
    "copy_values",
    "default_rule_of",
    "gather_rows",
    "kind_of",
    "make_equal",
    "passes_before",
    "require_on_nonfinite",
    "require_same_layout",
    "require_same_values",
    "require_weight",
    "start_together",
    "start_training",
    "sums_of",
    "unit_of",
    "warn_if_alike",
    "warn_once",
]

__getattr__ = lazy_names(
    __name__,
    {
        "platoon_base.collectives.weighted": "MIN_WEIGHT Header HostAverage WeightedAverage sums_of unit_of",
        "platoon_base.worker.agreed_state": "State agree agree_in_step checksums default_rule_of make_equal",
        "platoon_base.worker.all_values": "BatchSizes FlatAllReduce gather_rows require_same_values",
        "platoon_base.worker.fit": "Fit begins_anew center_is_on_device passes_before "
        "require_weight start_training warn_if_alike",
        "platoon_base.worker.initial_values": "copy_first_values copy_values require_same_layout start_together",
    },
)
