"""The extension that makes a main loop one of N that train together."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Sequence
from typing import Any

from blocks.extensions import SimpleExtension

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.rules import Rule
from platoon_base.worker import DEFAULT_TIMEOUT_S
from platoon_base.worker.shared_parameters import ON_NONFINITE
from platoon_plugins.blocks.loading import require_loaded_model
from platoon_plugins.blocks.members import LEADER_ONLY, Member, find
from platoon_plugins.blocks.stopping import StopTogether
from platoon_plugins.blocks.training import Settings, Training

__all__ = ["ParameterSync"]

log = logging.getLogger(__name__)

# Triggers by which something is synchronized while the main loop trains.
_DURING_TRAINING = {"before_epoch", "after_epoch", "before_batch", "after_batch", *SimpleExtension.INTEGER_TRIGGERS}
_EVERY_N_BATCHES = 10


class ParameterSync(Member, SimpleExtension):  # type: ignore[misc]
    """Train the main loop together with those of the other workers of the job.

    Put one into the list of extensions, anywhere: it takes the first place itself. Before the first batch (after `Load`
    and the like) all workers get the values of the first one. Then, whenever it is triggered, the rule is applied
    between this worker's parameters and the common center. `DistributedMonitoring`, `DataStreamMonitoring` and
    `Checkpoint` see the center's values, and so does everything once training is over. With ``rule=None``, for
    `AllReduceGradients`, the parameters are the same everywhere: their first values, and what the step rule keeps, are
    copied from the first worker.

    With averaged gradients, all workers get a `ConfigurationError` when they next meet if their models have become
    different: by another learning rate on one worker, or by an extension that changes the parameters of some.

    Population statistics of BatchNormalization are averaged whenever workers meet. A `Checkpoint` in between saves
    those of the first worker with the center's parameters, and a warning says so once. Put it behind
    `DistributedMonitoring`, with the same triggers.

    On all workers but the first, extensions that print or write are silent. Random streams of the compiled function,
    such as those of dropout, and the generators of Fuel's transformers differ between workers.

    At the end of training workers wait for one another, if the others end too. A worker that ends alone leaves the
    job, as does one with an exception, and the others go on; `StopTogether` makes them end together, which averaged
    gradients do anyway.

    A main loop that `Checkpoint` pickled joins again when it is resumed, with any number of workers: all of them load
    the same file. (One that averages gradients must have been made by several workers; alone there is nothing in it
    to average by.) In a job of one this extension does nothing.

    Parameters
    ----------
    rule : Rule or None
        Such as ``EASGD()``; None with `AllReduceGradients`.
    parameters : list of Theano shared variable, optional
        Of float dtypes. The default is those of the algorithm, or else of the model.
    leader_only : tuple of type
        Extensions of these classes run on the first worker only; ``()`` for none.
    on_nonfinite : {"raise", "skip", "restore"}
        What a rule does with a NaN or an infinity of this worker; see `Worker.init_shared_params`.
    timeout_s : float
        Bound on each wait for the other workers, which may come to the end of an epoch at another time.
    worker : Worker, optional
        The default is ``connect()``.
    **kwargs
        The triggers of `SimpleExtension`, and its ``name``; without triggers ``every_n_batches=10``.

    Raises
    ------
    ConfigurationError
        If the arguments cannot work, or the triggers never fire while the main loop trains.

    Examples
    --------
    >>> MainLoop(algorithm, shard_stream(stream), model=model,                      # doctest: +SKIP
    ...          extensions=[ParameterSync(EASGD()), FinishAfter(after_n_epochs=5), Printing()]).run()
    """

    place = -1

    def __init__(
        self,
        rule: Rule | None,
        parameters: Sequence[Any] | None = None,
        *,
        leader_only: tuple[type, ...] = LEADER_ONLY,
        on_nonfinite: str = "raise",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        worker: Worker | None = None,
        **kwargs: Any,
    ) -> None:
        if rule is not None and (isinstance(rule, type) or not callable(getattr(rule, "resolved", None))):
            raise ConfigurationError(f"got {rule!r} as the rule: pass EASGD(), ASGD(), or None with AllReduceGradients")
        if not isinstance(leader_only, tuple):
            raise ConfigurationError(f"got leader_only={leader_only!r}: pass a tuple of classes, such as (Printing,)")
        if on_nonfinite not in ON_NONFINITE:
            raise ConfigurationError(f"got on_nonfinite={on_nonfinite!r}: it must be one of {', '.join(ON_NONFINITE)}")
        if rule is None and on_nonfinite != "raise":
            raise ConfigurationError(
                f"got on_nonfinite={on_nonfinite!r} and no rule: averaged gradients bring a NaN of one worker to all "
                "at once; use RemoveNotFinite() behind AllReduceGradients()"
            )
        super().__init__(**_with_triggers(rule, kwargs))
        self.settings = Settings(rule, parameters, leader_only, on_nonfinite, timeout_s, worker)
        self._syncs = 0

    def __getstate__(self) -> dict[str, Any]:
        """The handle belongs to a running job."""
        return {**self.__dict__, "settings": self.settings._replace(worker=None)}

    def dispatch(self, callback_invoked: str, *from_main_loop: Any) -> None:
        """See `Member.dispatch`."""
        callback = str(callback_invoked)
        super().dispatch(callback_invoked, *from_main_loop)
        training = None if callback == "on_error" else self.training
        if training is None:
            return
        if callback in ("before_training", "on_resumption"):
            self._see_to_common_stops(training)
        if callback in ("before_epoch", "on_resumption"):
            require_loaded_model(self.main_loop)
        elif callback == "after_batch":
            training.batch_done()
        elif callback == "after_training":
            self._say_if_idle()

    def do(self, which_callback: str, *args: Any) -> None:
        """Apply the rule."""
        training = self.training
        if training is not None and training.started and not training.finished:
            training.synchronize()
            self._syncs += 1

    def _see_to_common_stops(self, training: Training) -> None:
        """Signals may come to the workers of a lockstep at different batches: what ends one must end all."""
        if training.lockstep and find(self.main_loop, StopTogether) is None:
            stop = StopTogether()
            stop.main_loop = self.main_loop
            self.main_loop.extensions = [*self.main_loop.extensions, stop]

    def _say_if_idle(self) -> None:
        batches = self.main_loop.status["iterations_done"]
        if self.settings.rule is not None and not self._syncs and batches:
            log.warning(
                "nothing was synchronized in %d batches but at the end of training: make the period of ParameterSync "
                "shorter, or train longer",
                batches,
            )


def _with_triggers(rule: Rule | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Check the triggers, or give the default ones."""
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
            f"got {', '.join(sorted(triggers))} and no rule: gradients are averaged in every batch; leave that out"
        )
    if rule is None or any(kwargs[name] for name in triggers & _DURING_TRAINING):
        return kwargs
    if triggers:
        raise ConfigurationError(
            f"got {', '.join(sorted(triggers))}, by which nothing is synchronized while the main loop trains: pass "
            "every_n_batches=10, or after_epoch=True"
        )
    return {**kwargs, "every_n_batches": _EVERY_N_BATCHES}
