"""Accumulators of Blocks' monitoring, exchanged and combined over the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from blocks.monitoring.aggregation import (
    AggregationScheme,
    Concatenate,
    Maximum,
    Mean,
    Minimum,
    Perplexity,
    TakeLast,
    _DataIndependent,
)
from blocks.monitoring.evaluators import AggregationBuffer, MonitoredQuantityBuffer

from platoon_base import Worker
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks.streams import packed, unpacked


class Share(NamedTuple):
    """One worker's number of batches, real accumulators, and quantity values for each batch."""

    batches: int
    accumulators: list[Array]
    records: list[list[Array]]


def gather_shares(
    worker: Worker, name: str, share: Share, ranks: Sequence[int], *, timeout_s: float
) -> tuple[list[Share], list[int]]:
    """Gather the shares of ``ranks``, or no shares if one is lost, and the ranks that took part."""
    # A collective call. Values become float64, so integers beyond 2^53 are rounded.
    mine = _pack(share)
    # The lengths may differ. Each worker adds its values at its own position of a vector of zeros.
    told = worker.gather([worker.global_rank, len(mine)], name=f"{name}, lengths", timeout_s=timeout_s)
    lengths = {rank: length for rank, length in told}
    if list(lengths) != list(ranks):
        return [], list(lengths)
    ends = np.cumsum(list(lengths.values()))
    end = ends[list(ranks).index(worker.global_rank)]
    everything = np.zeros(ends[-1])
    everything[end - len(mine) : end] = mine
    summed = worker.advanced.sum_arrays(name, [everything], timeout_s=timeout_s)
    if summed.ranks != list(ranks):
        return [], summed.ranks
    return [_unpack(row) for row in np.split(summed.arrays[0], ends[:-1])], summed.ranks


def _pack(share: Share) -> Array:
    """Pack a share into one vector: four counts, and all arrays in words of 32 bits."""
    arrays = [np.asarray(array) for array in [*share.accumulators, *(v for values in share.records for v in values)]]
    for array in arrays:
        if array.dtype.kind not in "biuf":
            raise ConfigurationError(
                f"got a value of dtype {array.dtype}: workers combine only real numbers; monitor "
                "its real and imaginary parts, or its absolute value"
            )
    body = packed(arrays)
    counts = [share.batches, len(share.accumulators), len(share.records), len(body)]
    # Sums of such words and zeros are exact.
    return np.concatenate([counts, np.pad(body, (0, -len(body) % 4)).view(np.uint32)])


def _unpack(row: Array) -> Share:
    batches, accumulators, records, size = row[:4].astype(int).tolist()
    body = row[4:].astype(np.uint32).view(np.uint8)[:size]
    arrays = [array.astype(np.float64) for array in unpacked(body)]
    values = arrays[accumulators:]
    each = len(values) // records if records else 0
    return Share(batches, arrays[:accumulators], [values[i * each : (i + 1) * each] for i in range(records)])


_REDUCTIONS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_COMBINATIONS = (*_REDUCTIONS, "last", "concatenate")

# For each scheme, how to combine the shared variables of its aggregator, in the order of their initialization.
_known: dict[type, tuple[str, ...]] = {
    Mean: ("sum", "sum", "max"),
    Perplexity: ("sum", "sum", "max"),
    Minimum: ("min", "max"),
    Maximum: ("max", "max"),
    Concatenate: ("concatenate", "max"),
    TakeLast: ("last",),
    _DataIndependent: (),
}


def register_aggregation(scheme: type, *combinations: str) -> None:
    """Register how the accumulators of your own aggregation scheme are combined over workers.

    Parameters
    ----------
    scheme : subclass of AggregationScheme
        Subclasses that do not override ``get_aggregator`` are registered too.
    *combinations : {"sum", "min", "max", "last", "concatenate"}
        One for each of the ``initialization_updates`` of its aggregator. "last" is the value of the
        worker with the last batch; "concatenate" takes the rows of all batches, one row per batch.

    Examples
    --------
    >>> class Variance(AggregationScheme): ...  # sums and a count     # doctest: +SKIP
    >>> register_aggregation(Variance, "sum", "sum", "sum")                        # doctest: +SKIP
    """
    if not (isinstance(scheme, type) and issubclass(scheme, AggregationScheme)):
        raise ConfigurationError(f"got {scheme!r}: pass a subclass of blocks.monitoring.aggregation.AggregationScheme")
    unknown = [name for name in combinations if name not in _COMBINATIONS]
    if unknown:
        raise ConfigurationError(f"got {unknown[0]!r}: a combination must be one of {', '.join(_COMBINATIONS)}")
    _known[scheme] = combinations


class _Accumulator(NamedTuple):
    name: str
    shared: Any
    combination: str


class Accumulators:
    """The shared variables in which an `AggregationBuffer` accumulates values over batches."""

    def __init__(self, buffer: AggregationBuffer) -> None:
        known = [(variable.name, how) for variable in buffer.variables for how in _combinations_for(variable)]
        shared = [variable for variable, _ in buffer.initialization_updates]
        self._accumulators = [_Accumulator(name, variable, how) for (name, how), variable in zip(known, shared)]
        if len(known) != len(shared):
            names = ", ".join(sorted({type(v.tag.aggregation_scheme).__name__ for v in buffer.variables}))
            raise ConfigurationError(
                f"got aggregation schemes ({names}) with {len(shared)} accumulators, {len(known)} "
                "expected: one of them has other accumulators than register_aggregation was "
                "given; name one combination for each"
            )

    def values(self) -> list[Array]:
        return [np.asarray(accumulator.shared.get_value()) for accumulator in self._accumulators]

    def set_combined(self, shares: Sequence[Share], order: Sequence[tuple[int, int]]) -> None:
        """Combine all accumulators here; ``order`` has the share and number of each batch."""
        if not order:
            # No worker has a batch.
            return
        for index, accumulator in enumerate(self._accumulators):
            parts = [share.accumulators[index] if share.batches else None for share in shares]
            _require_same_shapes(accumulator, parts)
            combined = _combine(accumulator.combination, parts, order)
            accumulator.shared.set_value(combined.astype(accumulator.shared.dtype))


def _combinations_for(variable: Any) -> tuple[str, ...]:
    scheme: Any = type(variable.tag.aggregation_scheme)
    base = next((base for base in scheme.__mro__ if base in _known), None)
    # A subclass with its own get_aggregator may have other accumulators.
    if base is not None and scheme.get_aggregator is base.get_aggregator:
        return _known[base]
    raise ConfigurationError(
        f"got {variable.name} with the aggregation scheme {scheme.__name__}: it is unknown how to "
        "combine its accumulators of several workers; call "
        f"register_aggregation({scheme.__name__}, ...)"
    )


def _require_same_shapes(accumulator: _Accumulator, parts: Sequence[Array | None]) -> None:
    rows = accumulator.combination == "concatenate"
    shapes = {part.shape[1:] if rows else part.shape for part in parts if part is not None}
    if len(shapes) > 1 and accumulator.combination != "last":
        raise ConfigurationError(
            f"got values of {accumulator.name} of shapes {sorted(shapes)} on different workers: "
            "only values of one shape can be combined; monitor a value that does not depend on "
            "the batch size, such as its mean"
        )


def _combine(how: str, parts: Sequence[Any], order: Sequence[tuple[int, int]]) -> Array:
    there = [part for part in parts if part is not None]
    if how == "last":
        return parts[order[-1][0]]
    if how in _REDUCTIONS:
        return np.asarray(_REDUCTIONS[how].reduce(there))
    return np.stack([part[number] for part, number in ((parts[share], number) for share, number in order)])


class RecordedQuantities:
    """A `MonitoredQuantityBuffer` that passes the values to the quantities at the end."""

    def __init__(self, buffer: MonitoredQuantityBuffer) -> None:
        self._buffer = buffer
        self.records: list[list[Array]] = []
        # Blocks makes `requires` from a set, whose order differs between processes.
        self._in_order = list(dict.fromkeys(v for quantity in buffer.quantities for v in quantity.requires))

    @property
    def requires(self) -> list[Any]:
        return self._buffer.requires

    @property
    def inputs(self) -> list[Any]:
        return self._buffer.inputs

    def initialize_quantities(self) -> None:
        self.records = []
        self._buffer.initialize_quantities()

    def aggregate_quantities(self, numerical_values: Sequence[Any]) -> None:
        if self._buffer.quantities:
            self.records.append([numerical_values[self.requires.index(v)] for v in self._in_order])

    def set_combined(self, shares: Sequence[Share], order: Sequence[tuple[int, int]]) -> None:
        dtypes = [variable.dtype for variable in self._in_order]
        self.records = [
            [value.astype(dtype) for value, dtype in zip(shares[share].records[number], dtypes)]
            for share, number in order
            if shares[share].records
        ]

    def get_aggregated_values(self) -> dict[str, Any]:
        """Pass all records to the quantities and return the results."""
        for values in self.records:
            self._buffer.aggregate_quantities([values[self._in_order.index(v)] for v in self.requires])
        self.records = []
        return self._buffer.get_aggregated_values()
