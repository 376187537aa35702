"""Monitoring divided among the workers, with the records of a single process that has all the data."""

from __future__ import annotations

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
from platoon_plugins.blocks.aggregation import Accumulators, RecordedQuantities
from platoon_plugins.blocks.data import with_scheme
from platoon_plugins.blocks.extensions import DistributedExtension, report_records
from platoon_plugins.blocks.same_data import require_same_stream
from platoon_plugins.blocks.schemes import Shard, ShardedScheme
from platoon_plugins.blocks.shares import Share, gather_shares
from platoon_plugins.blocks.streams import is_sharded, sources_of
from platoon_plugins.blocks.training import Training

__all__ = ["DistributedMonitoring", "DistributedTrainingMonitoring"]

# These transformers yield one batch for each batch that they read, so batches can be divided below them.
_BATCH_BY_BATCH = (FilterSources, Mapping, Padding, Rename, SourcewiseTransformer)


class ShardedEvaluator(DatasetEvaluator):  # type: ignore[misc]
    """A `DatasetEvaluator` that can divide its batches among the workers.

    Parameters
    ----------
    variables, updates
        See `DatasetEvaluator`.
    """

    def __init__(self, variables: Sequence[Any], updates: Any = None) -> None:
        super().__init__(variables, updates)
        self.monitored_quantities_buffer = RecordedQuantities(self.monitored_quantities_buffer)
        self._accumulators = Accumulators(self.theano_buffer)

    def evaluate_together(self, training: Training, name: str, stream: Any, sharded: bool) -> dict[str, Any] | None:
        """Compute the variables over the whole stream; a collective call.

        Parameters
        ----------
        training : Training
        name : str
            Name of the monitoring, the same on all workers.
        stream : AbstractDataStream
        sharded : bool
            Whether the stream has only this worker's batches.

        Returns
        -------
        dict of str to value, or None
            None if this main loop has to end now, because another one has ended.
        """
        with training.worker.validating():
            return self._evaluate_together(training, name, stream, sharded)

    def _evaluate_together(self, training: Training, name: str, stream: Any, sharded: bool) -> dict[str, Any] | None:
        training.end_round()
        meeting = training.meet(name)
        if meeting is None:
            return None
        training.average_statistics()
        if not sharded and self not in training.compared:
            training.compared.add(self)
            require_same_stream(stream, training.worker, name)
        ranks = meeting.ranks
        training.average_hosts()
        with training.center():
            while True:
                shard = Shard(ranks.index(training.worker.global_rank), len(ranks), training.worker.seed)
                share = self._accumulate(stream if sharded else _part(stream, shard), training.worker)
                combined, contributors = _combine(
                    training, name, ranks, share, self._accumulators, self.monitored_quantities_buffer, not sharded
                )
                if combined:
                    values = dict(self.get_aggregated_values())  # within the `with`: it may read the parameters
                    training.keep_evaluated()
                    if sharded:
                        training.warn_of_missing(name, contributors)
                    break
                ranks = contributors  # a worker left meanwhile: the others repeat the evaluation
        training.begin_round()
        return values

    def _accumulate(self, batches: Any, worker: Worker) -> Share:
        self.initialize_aggregators()
        if not hasattr(self, "_aggregate_fun"):
            self._compile()
        count = 0
        if self._aggregate_fun is not None:
            for batch in _epoch(batches):
                self.process_batch(batch)
                worker.progress()  # the workers that wait for this one time out only without its progress
                count += 1
        return Share(count, self._accumulators.values(), self.monitored_quantities_buffer.records)


def _combine(
    training: Training,
    name: str,
    ranks: Sequence[int],
    share: Share,
    accumulators: Accumulators,
    quantities: RecordedQuantities,
    dealt: bool,
) -> tuple[bool, list[int]]:
    """Combine the shares of all workers in this worker's accumulators and quantities; a collective call of ``ranks``.

    Parameters
    ----------
    dealt : bool
        Whether the k-th batches of all workers come before their (k+1)-th; otherwise all batches of the first worker
        come first.

    Returns
    -------
    combined : bool
        False if a worker left meanwhile.
    ranks : list of int
        The workers that took part.
    """
    shares, contributors = gather_shares(training.worker, name, share, ranks, timeout_s=training.timeout_s)
    if not shares:
        return False, contributors
    batches = [(index, number) for index, share in enumerate(shares) for number in range(share.batches)]
    order = sorted(batches, key=lambda batch: batch[::-1]) if dealt else batches
    accumulators.set_combined(shares, order)
    quantities.set_combined(shares, order)
    return True, contributors


def _part(stream: Any, shard: Shard) -> Any:
    """Return this worker's batches of a stream: for worker k of N the k-th, the (k+N)-th, and so on."""
    if is_sharded(stream):
        raise ConfigurationError(
            "got a stream that is sharded: pass the whole stream, of which each worker takes its part, or "
            "sharded=True if it holds data that only this worker has"
        )
    for source in sources_of(stream):
        if not isinstance(source, DataStream):
            raise ConfigurationError(
                f"got a stream that comes from a {type(source).__name__}, of which each worker may be given other "
                "batches: pass a stream of a data set, or sharded=True if this worker has batches of its own"
            )
    source = stream
    while isinstance(source, _BATCH_BY_BATCH):
        source = source.data_stream
    scheme = source.iteration_scheme if isinstance(source, DataStream) else None
    if scheme is None or scheme.requests_examples or isinstance(scheme, BatchSizeScheme):
        return _EveryNth(stream, shard)
    return with_scheme(stream, lambda scheme: ShardedScheme(scheme, worker=shard))


class _EveryNth:
    """Reads all batches of a stream and yields every N-th, for streams whose batches cannot be divided below."""

    def __init__(self, stream: Any, shard: Shard) -> None:
        self._stream, self._shard = stream, shard

    def get_epoch_iterator(self, as_dict: bool) -> Iterator[Any]:
        batches = self._stream.get_epoch_iterator(as_dict=as_dict)
        return islice(batches, self._shard.global_rank, None, self._shard.global_size)


def _epoch(stream: Any) -> Iterator[Any]:
    batches: Iterator[Any] = stream.get_epoch_iterator(as_dict=True)
    return batches


class DistributedMonitoring(DistributedExtension, DataStreamMonitoring):  # type: ignore[misc]
    """`DataStreamMonitoring` with the batches divided among the workers, and the same records in the log of each.

    Each worker evaluates its part of the batches. Then the workers combine their accumulators, not their results, so
    the records are those of a single process on the whole stream. That holds for variables averaged over batches, for
    every aggregation scheme of Blocks (for your own see `register_aggregation`), and for monitored quantities, which
    get the values of all batches on every worker. With a rule, the parameters have the center's values meanwhile.

    Each evaluation is a collective call, so it must be triggered alike on all workers: at the end of epochs, or at
    every n-th batch with averaged gradients. If a worker dies meanwhile, the others evaluate its part. Stopping
    extensions after this one in the list decide alike on all workers.

    For a single worker it is `DataStreamMonitoring`.

    Parameters
    ----------
    variables : list of TensorVariable and MonitoredQuantity
    data_stream : AbstractDataStream
        The whole stream, with the same batches on all workers; not the result of `shard_stream`.
    updates : list of tuple or OrderedDict, optional
    sharded : bool
        Whether the stream has only this worker's batches; workers may have different numbers of them. If a worker dies,
        its batches are missing.
    **kwargs
        ``prefix``, ``suffix``, ``name`` and the triggers of `DataStreamMonitoring`.

    Raises
    ------
    ConfigurationError
        If an aggregation scheme is unknown, or the stream may have different batches on each worker.

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

    def add_records(self, log: Any, record_tuples: Iterable[tuple[str, Any]]) -> None:
        """Write records to the log, and report the numbers among them to the launcher."""
        records = dict(record_tuples)
        super().add_records(log, records.items())
        report_records(self.main_loop, {self._record_name(name): value for name, value in records.items()})


class DistributedTrainingMonitoring(DistributedExtension, TrainingDataMonitoring):  # type: ignore[misc]
    """`TrainingDataMonitoring` over the batches that all workers have processed since the last records.

    Writing records is a collective call, so it must be triggered alike on all workers. For a value that does not depend
    on data, the record is the value of the last worker that has a batch.

    For a single worker it is `TrainingDataMonitoring`.

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
        """Restore a pickle and mark it: all workers load the first worker's accumulators, but only one may add them."""
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
        """Write the values of monitored variables to the log, or only accumulate a batch."""
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
        """Accumulate the current batch, unless it was accumulated already."""
        self._batches += self.main_loop.status["iterations_done"] > self._last_time_called
        super().do("after_batch", None, "just_aggregate")

    def _combine(self, training: Training) -> bool:
        """Combine the accumulators of all workers; return False if this main loop has to end, as another has ended."""
        meeting = training.meet(_title(self))
        if meeting is None:
            return False
        share = Share(self._batches, self._accumulators.values(), self._non_variables.records)
        combined, ranks = False, meeting.ranks
        while not combined:
            combined, ranks = _combine(
                training, _title(self), ranks, share, self._accumulators, self._non_variables, dealt=False
            )
        return True


def _title(extension: Any) -> str:
    """Return the name of a monitoring extension, the same on all workers."""
    names = [name for name in (extension.name, extension.prefix, extension.suffix) if name]
    return f"monitoring {' '.join(names)}"
