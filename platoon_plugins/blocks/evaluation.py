"""Monitoring divided among the workers, with the records of a single process on all data."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from blocks.extensions.monitoring import DataStreamMonitoring, TrainingDataMonitoring
from blocks.monitoring.evaluators import DatasetEvaluator
from fuel.schemes import BatchSizeScheme
from fuel.streams import DataStream
from fuel.transformers import FilterSources, Mapping, Padding, Rename, SourcewiseTransformer

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks.aggregation import Accumulators, RecordedQuantities, Share, gather_shares
from platoon_plugins.blocks.data import require_same_stream, with_scheme
from platoon_plugins.blocks.extensions import DistributedExtension, report_records
from platoon_plugins.blocks.schemes import Shard, ShardedScheme
from platoon_plugins.blocks.streams import is_sharded, sources_of
from platoon_plugins.blocks.training import Training

# These transformers yield one batch for each batch that they read, so batches can be divided below them.
_BATCH_BY_BATCH = (FilterSources, Mapping, Padding, Rename, SourcewiseTransformer)


class ShardedEvaluator(DatasetEvaluator):
    monitored_quantities_buffer: Any

    def __init__(self, variables: Sequence[Any], updates: Any = None) -> None:
        super().__init__(variables, updates)
        self.monitored_quantities_buffer = RecordedQuantities(self.monitored_quantities_buffer)
        self._accumulators = Accumulators(self.theano_buffer)

    def evaluate_together(self, training: Training, name: str, stream: Any, sharded: bool) -> dict[str, Any] | None:
        """Evaluate the stream; a collective call. Return None if this main loop has to end."""
        worker = training.worker

        def meet() -> list[int] | None:
            if training.meet(name) is None:
                return None
            training.average_statistics()
            if not sharded and self not in training.compared:
                training.compared.add(self)
                require_same_stream(stream, worker, name)
            return training.ranks

        def own(index: int, number: int) -> Share:
            part = stream if sharded else _part(stream, Shard(index, number, worker.seed))
            return self._accumulate(part, worker)

        combine = functools.partial(
            _combine, training, name, self._accumulators, self.monitored_quantities_buffer, not sharded
        )
        with training.evaluation(meet) as begun:
            if not begun:
                return None
            training.evaluate(own, combine)
            # This may read the parameters, so it stays within the `with`.
            values = dict(self.get_aggregated_values())
            training.keep_evaluated()
        if sharded:
            training.warn_of_missing(name)
        return values

    def _accumulate(self, batches: Any, worker: Worker) -> Share:
        self.initialize_aggregators()
        if not hasattr(self, "_aggregate_fun"):
            self._compile()
        count = 0
        if self._aggregate_fun is not None:
            for batch in batches.get_epoch_iterator(as_dict=True):
                self.process_batch(batch)
                # Progress keeps the waiting workers from timing out.
                worker.progress()
                count += 1
        return Share(count, self._accumulators.values(), self.monitored_quantities_buffer.records)


def _combine(
    training: Training,
    name: str,
    accumulators: Accumulators,
    quantities: RecordedQuantities,
    dealt: bool,
    share: Share,
    ranks: Sequence[int],
) -> tuple[None, list[int]]:
    """Combine all shares in the accumulators and quantities; a collective call of ``ranks``."""
    shares, contributors = gather_shares(training.worker, name, share, ranks, timeout_s=training.timeout_s)
    batches = [(index, number) for index, share in enumerate(shares) for number in range(share.batches)]
    order = sorted(batches, key=lambda batch: batch[::-1]) if dealt else batches
    if shares:
        accumulators.set_combined(shares, order)
        quantities.set_combined(shares, order)
    return None, contributors


def _part(stream: Any, shard: Shard) -> Any:
    if is_sharded(stream):
        raise ConfigurationError(
            "got a sharded stream: pass the whole stream, of which each worker reads its part, "
            "or sharded=True if it has data that only this worker has"
        )
    for source in sources_of(stream):
        if not isinstance(source, DataStream):
            raise ConfigurationError(
                f"got a stream from a {type(source).__name__}, which may give each worker other "
                "batches: pass a stream of a data set, or sharded=True if this worker has its "
                "own batches"
            )
    source = stream
    while isinstance(source, _BATCH_BY_BATCH):
        source = source.data_stream
    scheme = source.iteration_scheme if isinstance(source, DataStream) else None
    if scheme is None or scheme.requests_examples or isinstance(scheme, BatchSizeScheme):
        return _EveryNth(stream, shard)
    return with_scheme(stream, lambda scheme: ShardedScheme(scheme, worker=shard))


class _EveryNth:
    """Read all batches and yield every N-th, for streams that `with_scheme` cannot divide."""

    def __init__(self, stream: Any, shard: Shard) -> None:
        self._stream, self._shard = stream, shard

    def get_epoch_iterator(self, as_dict: bool) -> Iterator[Any]:
        batches = self._stream.get_epoch_iterator(as_dict=as_dict)
        return islice(batches, self._shard.global_rank, None, self._shard.global_size)


class DistributedMonitoring(DistributedExtension, DataStreamMonitoring):
    """`DataStreamMonitoring` divided among the workers, with the same records on each.

    Each worker evaluates its part of the batches. The workers combine their accumulators, not their
    results, so the records are those of a single process on the whole stream. This holds for
    averages over batches, for every aggregation scheme of Blocks (for your own see
    `register_aggregation`), and for monitored quantities, which get the values of all batches on
    every worker. With a rule, the parameters have the center's values meanwhile.

    Each evaluation is a collective call: trigger it alike on all workers, at the ends of epochs, or
    every n-th batch with averaged gradients. If a worker fails, the others evaluate its part.
    Stopping extensions behind this one decide alike on all workers. For a single worker it is
    `DataStreamMonitoring`.

    Parameters
    ----------
    variables : list of TensorVariable and MonitoredQuantity
    data_stream : AbstractDataStream
        The whole stream, with the same batches on all workers; not the result of `shard_stream`.
    updates : list of tuple or OrderedDict, optional
    sharded : bool
        Whether the stream has only this worker's batches; those of a failed worker are then
        missing.
    **kwargs
        ``prefix``, ``suffix``, ``name`` and the triggers of `DataStreamMonitoring`.

    Raises
    ------
    ConfigurationError
        If an aggregation scheme is unknown, or the stream may have different batches on each
        worker.

    Examples
    --------
    >>> DistributedMonitoring([cost], stream, prefix="valid", after_epoch=True)    # doctest: +SKIP
    """

    def __init__(
        self, variables: Sequence[Any], data_stream: Any, updates: Any = None, *, sharded: bool = False, **kwargs: Any
    ) -> None:
        super().__init__([], data_stream, **kwargs)
        self._evaluator = ShardedEvaluator(variables, updates)
        self._sharded = sharded

    def do(self, callback_name: str, *args: Any) -> None:
        training = self.training
        if training is None or training.worker.closed:
            super().do(callback_name, *args)
            return
        if not training.started:
            raise ConfigurationError(
                "got before_training=True, and the workers have no common values before training "
                "starts: pass before_first_epoch=True"
            )
        with training.worker.validating():
            values = self._evaluator.evaluate_together(training, _title(self), self.data_stream, self._sharded)
        if values is not None:
            self.add_records(self.main_loop.log, values.items())

    def add_records(self, log: Any, record_tuples: Iterable[tuple[str, Any]]) -> None:
        records = dict(record_tuples)
        super().add_records(log, records.items())
        report_records(self.main_loop, {self._record_name(name): value for name, value in records.items()})


class DistributedTrainingMonitoring(DistributedExtension, TrainingDataMonitoring):
    """`TrainingDataMonitoring` over the batches of all workers since the last records.

    Writing records is a collective call. Trigger it alike on all workers. A value that does not
    depend on data is recorded from the last worker that has a batch. For a single worker it is
    `TrainingDataMonitoring`.

    Parameters
    ----------
    variables : list of TensorVariable and MonitoredQuantity
    **kwargs
        ``prefix``, ``suffix``, ``name`` and the triggers of `TrainingDataMonitoring`.
    """

    def __init__(self, variables: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(variables, **kwargs)
        self._non_variables: Any = RecordedQuantities(self._non_variables)
        self._accumulators = Accumulators(self._variables)
        # Counted since the last records.
        self._batches = 0
        self._loaded = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Mark the state as loaded: only the first worker may count the pickled accumulators."""
        self.__dict__.update(state, _loaded=True)

    def dispatch(self, callback_invoked: str, *from_main_loop: Any) -> None:
        if self._loaded:
            self._loaded = False
            training = self.training
            if training is not None and training.worker.global_rank:
                self._batches = 0
                self._variables.initialize_aggregators()
                self._non_variables.initialize_quantities()
        super().dispatch(callback_invoked, *from_main_loop)

    def do(self, callback_name: str, *args: Any) -> None:
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
        self._batches += self.main_loop.status["iterations_done"] > self._last_time_called
        super().do("after_batch", None, "just_aggregate")

    def _combine(self, training: Training) -> bool:
        """Combine all workers' accumulators; return False if this main loop has to end now."""
        if training.meet(_title(self)) is None:
            return False
        share = Share(self._batches, self._accumulators.values(), self._non_variables.records)
        combine = functools.partial(_combine, training, _title(self), self._accumulators, self._non_variables, False)
        training.evaluate(lambda *_: share, combine)
        return True


def _title(extension: Any) -> str:
    names = [name for name in (extension.name, extension.prefix, extension.suffix) if name]
    return f"monitoring {' '.join(names)}"
