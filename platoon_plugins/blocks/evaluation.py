"""Evaluation of monitored variables, each worker on its part of the batches, with the result of one on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from blocks.monitoring.evaluators import DatasetEvaluator
from fuel.schemes import BatchSizeScheme
from fuel.streams import DataStream
from fuel.transformers import FilterSources, Mapping, Padding, Rename, SourcewiseTransformer

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks.aggregation import Accumulators, RecordedQuantities, Share
from platoon_plugins.blocks.gathering import gather
from platoon_plugins.blocks.same_data import require_same_stream
from platoon_plugins.blocks.schemes import Place, ShardedScheme
from platoon_plugins.blocks.streams import is_sharded, sources_of, with_scheme
from platoon_plugins.blocks.training import Training

__all__ = ["ShardedEvaluator", "combine"]

# Each batch that they give is one that they were given, so that batches can be dealt out below them.
_BATCH_BY_BATCH = (FilterSources, Mapping, Padding, Rename, SourcewiseTransformer)


class ShardedEvaluator(DatasetEvaluator):  # type: ignore[misc]
    """A `DatasetEvaluator` that can work together with those of other workers.

    Parameters
    ----------
    variables, updates
        As of `DatasetEvaluator`.
    """

    def __init__(self, variables: Sequence[Any], updates: Any = None) -> None:
        super().__init__(variables, updates)
        self.monitored_quantities_buffer = RecordedQuantities(self.monitored_quantities_buffer)
        self._accumulators = Accumulators(self.theano_buffer)

    def evaluate_together(self, training: Training, name: str, stream: Any, sharded: bool) -> dict[str, Any] | None:
        """Compute the variables over all of a stream; a collective call.

        Parameters
        ----------
        training : Training
        name : str
            Of what is monitored, the same on all workers.
        stream : AbstractDataStream
        sharded : bool
            Whether the stream has this worker's batches only.

        Returns
        -------
        dict of str to value, or None
            None if another main loop has ended, and this one shall end too.
        """
        meeting = training.meet(name)
        if meeting is None:
            return None
        training.average_statistics()
        if not sharded and self not in training.compared:
            training.compared.add(self)
            require_same_stream(stream, training.worker, name)
        ranks = meeting.ranks
        with training.center():
            while True:
                place = Place(ranks.index(training.worker.global_rank), len(ranks), training.worker.seed)
                share = self._accumulate(stream if sharded else _part(stream, place))
                combined, contributors = combine(
                    training, name, ranks, share, self._accumulators, self.monitored_quantities_buffer, not sharded
                )
                if combined:
                    return dict(self.get_aggregated_values())
                ranks = contributors  # somebody left on the way: those who are still here do it again

    def _accumulate(self, batches: Any) -> Share:
        self.initialize_aggregators()
        if not hasattr(self, "_aggregate_fun"):
            self._compile()
        count = 0
        if self._aggregate_fun is not None:
            for batch in _epoch(batches):
                self.process_batch(batch)
                count += 1
        return Share(count, self._accumulators.values(), self.monitored_quantities_buffer.records)


def combine(
    training: Training,
    name: str,
    ranks: Sequence[int],
    share: Share,
    accumulators: Accumulators,
    quantities: RecordedQuantities,
    dealt: bool,
) -> tuple[bool, list[int]]:
    """Give accumulators and quantities of this worker what those of all workers have; a collective call of ``ranks``.

    Parameters
    ----------
    dealt : bool
        Whether batches were dealt out one by one; otherwise those of the first worker come first.

    Returns
    -------
    combined : bool
    ranks : list of int
        Who took part; not all of ``ranks`` if it could not be done.
    """
    rows, contributors = gather(training.worker, name, share.arrays(), ranks, timeout_s=training.timeout_s)
    if not rows:
        return False, contributors
    shares = [Share.of_arrays(row) for row in rows]
    batches = [(place, number) for place, share in enumerate(shares) for number in range(share.batches)]
    order = sorted(batches, key=lambda batch: batch[::-1]) if dealt else batches
    accumulators.set_combined(shares, order)
    quantities.set_combined(shares, order)
    return True, contributors


def _part(stream: Any, place: Place) -> Any:
    """Return this worker's batches of a stream: the k-th, the (k+N)-th, and so on."""
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
        return _Every(stream, place)
    return with_scheme(stream, lambda scheme: ShardedScheme(scheme, worker=place))


class _Every:
    """Reads all batches of a stream and gives every N-th: what the batches are is only known above the transformers."""

    def __init__(self, stream: Any, place: Place) -> None:
        self._stream, self._place = stream, place

    def get_epoch_iterator(self, as_dict: bool) -> Iterator[Any]:
        batches = self._stream.get_epoch_iterator(as_dict=as_dict)
        return islice(batches, self._place.global_rank, None, self._place.global_size)


def _epoch(stream: Any) -> Iterator[Any]:
    batches: Iterator[Any] = stream.get_epoch_iterator(as_dict=True)
    return batches
