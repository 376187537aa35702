"""A main loop's parameters, step rule state, hyperparameters and statistics."""

from __future__ import annotations

import logging
from typing import Any

import theano
from blocks.algorithms import GradientDescent
from blocks.extensions.saveload import LOADED_FROM, Load
from blocks.filter import VariableFilter
from blocks.roles import ALGORITHM_HYPERPARAMETER, BATCH_NORM_POPULATION_STATISTICS
from blocks.serialization import load_parameters
from theano.gof.graph import ancestors

from platoon_base import Worker
from platoon_base.errors import ConfigurationError, LayoutMismatchError
from platoon_base.theano_ops import decay_as_one_process
from platoon_base.worker import State, agree

log = logging.getLogger(__name__)


def updates_of(algorithm: Any) -> list[tuple[Any, Any]]:
    """Return the shared variables that an algorithm updates, each with its new symbolic value."""
    updates = getattr(algorithm, "updates", None) or []
    pairs = list(updates.items()) if hasattr(updates, "items") else list(updates)
    return [(variable, value) for variable, value in pairs if isinstance(value, theano.Variable)]


def trained_parameters(main_loop: Any) -> list[Any]:
    found = getattr(main_loop.algorithm, "parameters", None)
    if not found and main_loop._model is not None:
        found = main_loop.model.parameters
    if not found:
        raise ConfigurationError(
            f"got a main loop whose algorithm ({type(main_loop.algorithm).__name__}) has no "
            "parameters, and no model: pass the trained shared variables, ParameterSync(..., "
            "parameters=[...])"
        )
    return list(found)


def step_rule_state(algorithm: Any) -> list[Any]:
    """Return the float state of the step rule, such as velocities and moments."""
    if not isinstance(algorithm, GradientDescent):
        return []
    kept = {id(variable): variable for variable, _ in algorithm.step_rule_updates}
    return [variable for variable in kept.values() if variable.dtype in theano.tensor.float_dtypes]


def moments_of(algorithm: Any, parameters: list[Any]) -> list[Any]:
    """Return the step rule's state of the given parameters, without scalars."""
    made_for = ((state, getattr(state.tag, "for_parameter", None)) for state in step_rule_state(algorithm))
    return [state for state, parameter in made_for if parameter in parameters and state.ndim]


def hyperparameters(algorithm: Any) -> list[Any]:
    """Return the shared variables that control step rules: learning rates, momenta, thresholds."""
    shared = [
        found for found in ancestors([value for _, value in updates_of(algorithm)]) if hasattr(found, "get_value")
    ]
    return list(VariableFilter(roles=[ALGORITHM_HYPERPARAMETER])(shared))


def collected_statistics(algorithm: Any) -> list[Any]:
    """Return the population statistics of BatchNormalization that the algorithm updates."""
    targets = [variable for variable, _ in updates_of(algorithm)]
    return list(VariableFilter(roles=[BATCH_NORM_POPULATION_STATISTICS])(targets))


def require_loaded_model(main_loop: Any) -> None:
    """Raise if `Load` has read the parameters of another model; Blocks itself only logs it."""
    path = main_loop.log.current_row.get(LOADED_FROM)
    # A user's extension may set LOADED_FROM for files of its own.
    loads = (each for each in main_loop.extensions if isinstance(each, Load) and type(each).load_to is Load.load_to)
    if path is None or path not in [each.path for each in loads]:
        return
    with open(path, "rb") as file:
        loaded = load_parameters(file).keys()
    trained = main_loop.model.get_parameter_dict().keys()
    if loaded != trained:
        raise LayoutMismatchError(
            f"{path} has the parameters of another model: it lacks {_names(trained - loaded)} and "
            f"has {_names(loaded - trained)}; load a file of this model, or leave Load out to "
            "start from the beginning"
        )


def _names(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"


class Statistics:
    """Averages the population statistics, and records when they were last equal on all workers."""

    def __init__(self, worker: Worker, name: str, timeout_s: float) -> None:
        self._worker = worker
        self._name = name
        self._timeout_s = timeout_s
        # In batches; None before training begins.
        self._averaged_at: int | None = None
        self._warned = False

    def start(self, main_loop: Any) -> None:
        self._averaged_at = main_loop.status["iterations_done"]

    def average(self, main_loop: Any) -> None:
        """Average the statistics over all workers; a collective call."""
        self._averaged_at = main_loop.status["iterations_done"]
        statistics = collected_statistics(main_loop.algorithm)
        if not statistics:
            return
        states = [State(variable, "mean") for variable in statistics]
        agree(states, self._worker, f"statistics of {self._name}", timeout_s=self._timeout_s)

    def warn_if_own(self, main_loop: Any) -> None:
        """Warn once if the statistics have changed on this worker since the last average."""
        done = main_loop.status["iterations_done"]
        if self._warned or self._averaged_at in (None, done):
            return
        if collected_statistics(main_loop.algorithm):
            self._warned = True
            log.warning(
                "rank %d: saved or evaluated values have the population statistics of "
                "BatchNormalization of this worker alone, because the workers averaged theirs "
                "last after batch %d: put Checkpoint and DataStreamMonitoring after "
                "DistributedMonitoring, with the same triggers",
                self._worker.global_rank,
                self._averaged_at,
            )


def decay_statistics(algorithm: Any, workers: int) -> None:
    """Let moving averages decay as in ``workers`` times as many steps."""
    # In a compiled algorithm, only the number of workers can be changed.
    statistics = set(collected_statistics(algorithm))
    if not statistics:
        return
    found = [(variable, value) for variable, value in updates_of(algorithm) if variable in statistics]
    changed = dict(decay_as_one_process(found, workers))
    if not hasattr(algorithm, "_function"):
        pairs = algorithm.updates.items() if hasattr(algorithm.updates, "items") else algorithm.updates
        algorithm.updates = [(variable, changed.get(variable, value)) for variable, value in pairs]
