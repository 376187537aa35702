"""What a training algorithm of Blocks tells about itself: what it trains and keeps, and whether workers meet in it."""

from __future__ import annotations

from typing import Any

import theano
from blocks.algorithms import GradientDescent
from blocks.filter import VariableFilter
from blocks.roles import ALGORITHM_HYPERPARAMETER, BATCH_NORM_POPULATION_STATISTICS
from theano.gof.graph import ancestors

from platoon_base.errors import ConfigurationError
from platoon_base.theano_ops.reductions import AllReduce
from platoon_plugins.blocks.gradients import AllReduceGradients

__all__ = [
    "averages_gradients",
    "collected_statistics",
    "hyperparameters",
    "meant_to_average",
    "step_rule_state",
    "trained_parameters",
]


def averages_gradients(algorithm: Any) -> bool:
    """Tell whether the batches of all workers are processed together: whether they meet inside the function."""
    values = [value for _, value in _updates(algorithm)]
    nodes = (variable.owner for variable in ancestors(values) if variable.owner is not None)
    return any(isinstance(node.op, AllReduce) for node in nodes)


def meant_to_average(algorithm: Any) -> bool:
    """Tell whether a step rule would average gradients in a job of several."""
    rules = [getattr(algorithm, "step_rule", None)]
    while rules:
        rule = rules.pop()
        if isinstance(rule, AllReduceGradients):
            return True
        rules += getattr(rule, "components", [])
    return False


def _updates(algorithm: Any) -> list[tuple[Any, Any]]:
    updates = getattr(algorithm, "updates", None) or []
    pairs = list(updates.items()) if hasattr(updates, "items") else list(updates)
    return [(variable, value) for variable, value in pairs if isinstance(value, theano.Variable)]


def trained_parameters(main_loop: Any) -> list[Any]:
    """Return what the main loop trains.

    Raises
    ------
    ConfigurationError
        If neither its algorithm nor its model knows.
    """
    found = getattr(main_loop.algorithm, "parameters", None)
    if not found and main_loop._model is not None:
        found = main_loop.model.parameters
    if not found:
        raise ConfigurationError(
            f"got a main loop whose algorithm ({type(main_loop.algorithm).__name__}) has no parameters, and no model: "
            "pass ParameterSync(..., parameters=[...]), the shared variables that are trained"
        )
    return list(found)


def step_rule_state(algorithm: Any) -> list[Any]:
    """Return what the step rule keeps from one batch to the next: velocities, moments, a count of batches."""
    if not isinstance(algorithm, GradientDescent):
        return []
    kept = {id(variable): variable for variable, _ in algorithm.step_rule_updates}
    return [variable for variable in kept.values() if variable.dtype in theano.tensor.float_dtypes]


def hyperparameters(algorithm: Any) -> list[Any]:
    """Return the shared variables by which step rules are controlled: learning rates, momenta, thresholds."""
    shared = [found for found in ancestors([value for _, value in _updates(algorithm)]) if hasattr(found, "get_value")]
    return list(VariableFilter(roles=[ALGORITHM_HYPERPARAMETER])(shared))


def collected_statistics(algorithm: Any) -> list[Any]:
    """Return what is not trained but collected in each batch: BatchNormalization's population statistics."""
    targets = [variable for variable, _ in _updates(algorithm)]
    return list(VariableFilter(roles=[BATCH_NORM_POPULATION_STATISTICS])(targets))
