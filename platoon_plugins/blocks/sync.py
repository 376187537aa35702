"""`ParameterSync`, the extension that trains one model with the main loops of all workers."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Sequence
from typing import Any

from blocks.extensions import SimpleExtension

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.rules import Rule, default_period, require_rule
from platoon_base.worker import DEFAULT_TIMEOUT_S, require_on_nonfinite
from platoon_plugins.blocks.extensions import (
    LEADER_ONLY,
    Cost,
    DistributedExtension,
    find,
    report_batch,
    report_cost,
    report_limits,
)
from platoon_plugins.blocks.model import require_loaded_model
from platoon_plugins.blocks.stopping import StopTogether
from platoon_plugins.blocks.training import Settings, Training, refuse_on_nonfinite

log = logging.getLogger(__name__)

# Triggers that fire while the main loop trains.
_DURING_TRAINING = {"before_epoch", "after_epoch", "before_batch", "after_batch", *SimpleExtension.INTEGER_TRIGGERS}


class ParameterSync(DistributedExtension, SimpleExtension):
    """Synchronize the main loop with those of the other workers to train one model.

    Add one to the list of extensions, at any position: it moves itself to the first. Before the
    first batch, after `Load` and the like, all workers get the values of the first worker. Each
    trigger then applies the rule between this worker's parameters and the center.
    `DistributedMonitoring`, `DataStreamMonitoring` and `Checkpoint` use the center's values, and
    the parameters have them after training. For a single worker this extension does nothing.

    With averaged gradients (`AllReduceGradients`) it copies the first worker's parameters and step
    rule state, and compares the models whenever the workers wait for each other, as at an
    evaluation. If the models differ, for instance by a learning rate, all workers raise
    `ConfigurationError`.

    `DistributedMonitoring` averages the population statistics of BatchNormalization at each
    evaluation, and this extension averages them at the end of training. At other times `Checkpoint`
    saves the leader's own statistics and warns once, so put it behind `DistributedMonitoring`, with
    the same triggers. Random streams, such as those of dropout and of Fuel's transformers, differ
    between workers.

    A worker that ends early, or by an exception, leaves the job, and the others continue. With
    `StopTogether`, or averaged gradients, all end together. A pickle of `Checkpoint` can be resumed
    by any number of workers, which all load the same file; with averaged gradients it must come
    from a job of several workers.

    Parameters
    ----------
    rule : Rule, None or "auto"
        None with `AllReduceGradients`. "auto" is None if the algorithm averages gradients, and
        otherwise `platoon_base.rules.default_rule`.
    parameters : list of Theano shared variable, optional
        Parameters of float dtypes. The default is those of the algorithm, or else of the model.
    leader_only : tuple of type
        Extensions of these classes run on the first worker only, by default `Printing`,
        `ProgressBar` and `Checkpoint`. A class that you add, as in ``(*LEADER_ONLY, Mine)``, finds
        the center's values in the parameters.
    on_nonfinite : {"raise", "skip", "restore"}
        How the rule treats a NaN or an infinity; see `Worker.init_shared_params`.
    timeout_s : float
        Bound on each wait for the other workers.
    worker : Worker, default ``connect()``
    **kwargs
        The triggers of `SimpleExtension`, and its ``name``. Without triggers ``every_n_batches`` is
        `platoon_base.rules.default_period` of the rule.

    Raises
    ------
    ConfigurationError
        If the arguments contradict each other, or the triggers never fire during training.

    Examples
    --------
    >>> extensions = [ParameterSync(), FinishAfter(after_n_epochs=5), Printing()]  # doctest: +SKIP
    >>> MainLoop(algorithm, shard_stream(stream), extensions=extensions).run()     # doctest: +SKIP
    """

    order = -1

    def __init__(
        self,
        rule: Rule | str | None = "auto",
        *,
        parameters: Sequence[Any] | None = None,
        leader_only: tuple[type, ...] = LEADER_ONLY,
        on_nonfinite: str = "raise",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        worker: Worker | None = None,
        **kwargs: Any,
    ) -> None:
        if rule not in ("auto", None):
            require_rule(rule)
        if not isinstance(leader_only, tuple):
            raise ConfigurationError(f"got leader_only={leader_only!r}: pass a tuple of classes, such as (Printing,)")
        require_on_nonfinite(on_nonfinite)
        if rule is None:
            refuse_on_nonfinite(on_nonfinite)
        kwargs = _with_triggers(rule, kwargs)
        super().__init__(**kwargs)
        period = kwargs.get("every_n_batches")
        self.settings: Settings = Settings(rule, parameters, leader_only, on_nonfinite, timeout_s, worker, period)
        self._cost = Cost()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "settings": self.settings._replace(worker=None)}

    def dispatch(self, callback_invoked: str, *from_main_loop: Any) -> None:
        callback = str(callback_invoked)
        if callback == "before_training":
            self._cost.watch(self.main_loop.algorithm)
        elif callback == "before_epoch":
            report_limits(self.main_loop)
        elif callback in ("after_batch", "after_epoch"):
            report_cost(self.main_loop, self._cost, now=callback == "after_epoch")
        if callback == "after_batch" and self.training is not None:
            self.training.batch_done()  # A synchronization of this batch follows.
        super().dispatch(callback_invoked, *from_main_loop)
        training = None if callback == "on_error" else self.training
        if training is None:
            if callback == "after_batch":
                report_batch(self.main_loop)
            return
        if callback in ("before_training", "on_resumption"):
            self._stop_together(training)
        if callback in ("before_epoch", "on_resumption"):
            require_loaded_model(self.main_loop)
        elif callback == "after_training":
            self._warn_if_idle(training)

    def do(self, which_callback: str, *args: Any) -> None:
        training = self.training
        if training is not None and training.started and not training.ended and not training.averages:
            training.synchronize(whole=which_callback != "after_batch")

    def _stop_together(self, training: Training) -> None:
        if training.lockstep and find(self.main_loop, StopTogether) is None:
            stop = StopTogether()
            stop.main_loop = self.main_loop
            self.main_loop.extensions = [*self.main_loop.extensions, stop]

    def _warn_if_idle(self, training: Training) -> None:
        batches = self.main_loop.status["iterations_done"]
        if not training.averages and not training.synced and batches:
            log.warning(
                "nothing was synchronized in %d batches except at the end of training: make the "
                "period of ParameterSync shorter, or train longer",
                batches,
            )


def _with_triggers(rule: Rule | str | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Check the triggers in ``kwargs``, and add a default trigger if there is none."""
    for name in SimpleExtension.INTEGER_TRIGGERS & kwargs.keys():
        value = kwargs[name]
        whole = isinstance(value, numbers.Real) and not isinstance(value, bool) and value % 1 == 0
        if value is not None and (not whole or value < 1):
            raise ConfigurationError(
                f"got {name}={value!r}: it counts {name.rpartition('_')[2]} and must be a whole number >= 1"
            )
    triggers = kwargs.keys() & (SimpleExtension.INTEGER_TRIGGERS | SimpleExtension.BOOLEAN_TRIGGERS)
    if rule is None and triggers:
        raise ConfigurationError(
            f"got {', '.join(sorted(triggers))} and no rule: gradients are averaged in every "
            "batch; leave the triggers out"
        )
    if rule is None or any(kwargs[name] for name in triggers & _DURING_TRAINING):
        return kwargs
    if triggers:
        raise ConfigurationError(
            f"got {', '.join(sorted(triggers))}, which never synchronize during training: pass "
            "every_n_batches=10, or after_epoch=True"
        )
    return {**kwargs, "every_n_batches": default_period(rule)}
