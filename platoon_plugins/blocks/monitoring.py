"""Monitoring over the data of all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocks.extensions.monitoring import DataStreamMonitoring, TrainingDataMonitoring

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks.aggregation import Accumulators, RecordedQuantities, Share
from platoon_plugins.blocks.evaluation import ShardedEvaluator, combine
from platoon_plugins.blocks.members import Member
from platoon_plugins.blocks.training import Training

__all__ = ["DistributedMonitoring", "DistributedTrainingMonitoring"]


class DistributedMonitoring(Member, DataStreamMonitoring):  # type: ignore[misc]
    """`DataStreamMonitoring` with the work divided among the workers, and the same records in the log of each.

    Each worker evaluates its part of the batches; then what was accumulated is put together, not the results, so that
    the records are those of one process on the whole stream: of variables averaged over batches, of every aggregation
    scheme of Blocks (for one of your own see `register_aggregation`), and of monitored quantities, which are given the
    values of all batches on each worker. With a rule, parameters have the center's values meanwhile.

    All workers wait for one another, so all must be triggered alike: at the end of epochs, or at every n-th batch of
    averaged gradients. If a worker dies on the way the others do its part. Stopping extensions that stand behind it
    decide alike on all workers.

    In a job of one it is `DataStreamMonitoring`.

    Parameters
    ----------
    variables : list of TensorVariable and MonitoredQuantity
    data_stream : AbstractDataStream
        The whole stream, with the same batches on all workers; not the result of `shard_stream`.
    updates : list of tuple or OrderedDict, optional
    sharded : bool
        The stream has batches that only this worker has, more or fewer than others have; if it dies they are missing.
    **kwargs
        ``prefix``, ``suffix``, ``name`` and the triggers of `DataStreamMonitoring`.

    Raises
    ------
    ConfigurationError
        If it is not known how an aggregation scheme is combined, or what batches a stream gives.

    Examples
    --------
    >>> DistributedMonitoring([cost, error], valid_stream, prefix="valid", after_epoch=True)    # doctest: +SKIP
    """

    def __init__(
        self, variables: Sequence[Any], data_stream: Any, updates: Any = None, *, sharded: bool = False, **kwargs: Any
    ) -> None:
        super().__init__([], data_stream, **kwargs)
        self._evaluator = ShardedEvaluator(variables, updates)
        self._sharded = sharded

    def do(self, callback_name: str, *args: Any) -> None:
        """Write the values of monitored variables to the log."""
        training = self.training
        if training is None or training.worker.closed:
            super().do(callback_name, *args)
            return
        if not training.started:
            raise ConfigurationError(
                "got before_training=True: the workers have no common values before training begins; pass "
                "before_first_epoch=True"
            )
        values = self._evaluator.evaluate_together(training, _title(self), self.data_stream, self._sharded)
        if values is not None:
            self.add_records(self.main_loop.log, values.items())


class DistributedTrainingMonitoring(Member, TrainingDataMonitoring):  # type: ignore[misc]
    """`TrainingDataMonitoring` over the batches that all workers have processed since its last records.

    All workers wait for one another when it writes records, so all must be triggered alike. Values that do not depend
    on data are those of the last worker with a batch.

    In a job of one it is `TrainingDataMonitoring`.

    Parameters
    ----------
    variables : list of TensorVariable and MonitoredQuantity
    **kwargs
        ``prefix``, ``suffix``, ``name`` and the triggers of `TrainingDataMonitoring`.
    """

    def __init__(self, variables: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(variables, **kwargs)
        self._non_variables = RecordedQuantities(self._non_variables)
        self._accumulators = Accumulators(self._variables)
        self._batches = 0  # since the last records
        self._loaded = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What the first worker had accumulated counts once, though all workers load it."""
        self.__dict__.update(state, _loaded=True)

    def dispatch(self, callback_invoked: str, *from_main_loop: Any) -> None:
        """See `Member.dispatch`."""
        if self._loaded:
            self._loaded = False
            training = self.training
            if training is not None and training.worker.global_rank:
                self._batches = 0
                self._variables.initialize_aggregators()
                self._non_variables.initialize_quantities()
        super().dispatch(callback_invoked, *from_main_loop)

    def do(self, callback_name: str, *args: Any) -> None:
        """Write the values of monitored variables to the log, unless called to take in a batch."""
        training = self.training
        _, from_user = self.parse_args(callback_name, args)
        if callback_name == "before_training":
            super().do(callback_name, *args)
        elif from_user == ("just_aggregate",):
            self._take_in()
        elif training is None or training.worker.closed:
            self._batches = 0
            super().do(callback_name, *args)
        else:
            self._take_in()
            if self._combine(training):
                super().do(callback_name, *args)
            self._batches = 0

    def _take_in(self) -> None:
        """Take in a batch, unless that was done."""
        self._batches += self.main_loop.status["iterations_done"] > self._last_time_called
        super().do("after_batch", None, "just_aggregate")

    def _combine(self, training: Training) -> bool:
        """Put together what all workers have; False if another main loop has ended, and this one shall end too."""
        meeting = training.meet(_title(self))
        if meeting is None:
            return False
        share = Share(self._batches, self._accumulators.values(), self._non_variables.records)
        combined, ranks = False, meeting.ranks
        while not combined:
            combined, ranks = combine(
                training, _title(self), ranks, share, self._accumulators, self._non_variables, dealt=False
            )
        return True


def _title(extension: Any) -> str:
    """Tell what is monitored."""
    names = [name for name in (extension.name, extension.prefix, extension.suffix) if name]
    return f"monitoring {' '.join(names)}"
