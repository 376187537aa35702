"""Parts of a Fuel stream: the streams below its transformers, and their random generators."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from fuel.streams import AbstractDataStream
from fuel.transformers import Mapping, Transformer

from platoon_base.errors import ConfigurationError
from platoon_base.sharding import shard_seed
from platoon_plugins.blocks.above import streams_below
from platoon_plugins.blocks.broadcast import BroadcastStream
from platoon_plugins.blocks.dealing import DealtStream
from platoon_plugins.blocks.schemes import ShardedScheme, all_schemes

__all__ = [
    "all_streams",
    "draw_by_rank",
    "is_broadcast",
    "is_sharded",
    "maps_one_to_one",
    "require_stream",
    "sources_of",
]

# These methods of Fuel read one batch for each batch that they return.
_ONE_TO_ONE = (Transformer.get_data, Mapping.get_data)


def all_streams(stream: Any) -> Iterator[Any]:
    """Yield a stream and all streams below it, including merged ones."""
    yield stream
    for below in streams_below(stream):
        yield from all_streams(below)


def sources_of(stream: Any) -> Iterator[Any]:
    """Yield the streams at the bottom, below all transformers."""
    for link in all_streams(stream):
        require_stream(link)
        if not streams_below(link):
            yield link


def is_sharded(stream: AbstractDataStream) -> bool:
    sources = list(sources_of(stream))
    schemes = (scheme for source in sources for scheme in all_schemes(source.iteration_scheme))
    return any(isinstance(part, (DealtStream, ShardedScheme)) for part in (*sources, *schemes))


def is_broadcast(stream: Any) -> bool:
    """Return whether each batch is a collective call, as the first worker reads for all."""
    return any(isinstance(link, BroadcastStream) for link in all_streams(stream))


def maps_one_to_one(stream: Any) -> bool:
    """Return whether a transformer yields one batch, or example, for each that it reads."""
    kind = type(stream)
    return (
        isinstance(stream, Transformer)
        and stream.iteration_scheme is None
        and kind.get_epoch_iterator is Transformer.get_epoch_iterator
        and kind.get_data in _ONE_TO_ONE
    )


def draw_by_rank(transformer: Any, rank: int) -> None:
    """Reseed the random generators of a transformer by the rank; rank 0 keeps its generators."""
    for name, value in list(vars(transformer).items()) if rank else ():
        if isinstance(value, np.random.RandomState):
            drawn = copy.deepcopy(value).randint(2**31 - 1)
            setattr(transformer, name, np.random.RandomState(shard_seed(int(drawn), rank) % 2**32))
        elif isinstance(value, np.random.Generator):
            drawn = copy.deepcopy(value).integers(2**31 - 1)
            setattr(transformer, name, np.random.default_rng([int(drawn), rank]))


def require_stream(stream: Any) -> None:
    if not isinstance(stream, AbstractDataStream):
        raise ConfigurationError(
            f"got {type(stream).__name__}: pass a Fuel stream, such as DataStream(dataset, iteration_scheme=...)"
        )
