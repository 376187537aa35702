"""Checks that all workers divide the same stream."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from fuel.schemes import BatchScheme, IndexScheme

from platoon_base import Worker
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import fingerprint
from platoon_base.worker import SAME_DATA_REMEDY
from platoon_plugins.blocks.schemes import ShardedScheme, all_schemes
from platoon_plugins.blocks.streams import DealtStream, all_streams, is_broadcast, streams_below

__all__ = ["require_dealt_out", "require_same_stream"]

log = logging.getLogger(__name__)

_PART, _WHOLE, _BROADCAST = "a part of", "all of", "what worker 0 reads"
# Rows of a data set to compare.
_ROWS = 16
# Levels of nested objects whose attributes are compared.
_DEPTH = 4


def require_same_stream(stream: Any, worker: Worker, user: str) -> None:
    """Raise if another worker has passed a different stream before; does not wait."""
    links = list(all_streams(stream))
    worker.advanced.require_same_data(
        *(part for link in links for part in _contents(link)), kind=f"{_kind(links[-1])}, given to {user}"
    )


def require_dealt_out(stream: Any, worker: Worker, name: str, *, timeout_s: float) -> None:
    """Raise if workers train on parts of different streams; a collective call."""
    rank, mine = worker.global_rank, _what_is_read(stream)
    read = dict(worker.gather([rank, mine], name=f"the data of {name}", timeout_s=timeout_s))
    parts = {other: what for other, what in read.items() if what.startswith(_PART)}
    if len(set(parts.values())) > 1:
        of_each = ", ".join(f"worker {other} {what}" for other, what in sorted(parts.items()))
        raise ConfigurationError(f"the streams of {name} differ: {of_each}. {SAME_DATA_REMEDY}")
    if len(read) == 1 or set(read.values()) != {mine} or rank != min(read):
        return
    if mine.startswith(_WHOLE):
        log.warning(
            "the %d workers train on the same data, each on all of it in every epoch: divide it "
            "among them with shard_stream(stream)",
            len(read),
        )
    elif mine == _BROADCAST:
        log.warning(
            "the %d workers train on the same batches, which worker 0 reads for all "
            '(mode="broadcast"), so nothing is divided: shard_stream(stream) gives each worker '
            "its own batches of a stream that all can read",
            len(read),
        )


def _what_is_read(stream: Any) -> str:
    """Describe whether a stream has a part of the rows or all, with their fingerprint."""
    if is_broadcast(stream):
        return _BROADCAST
    links = list(all_streams(stream))
    contents = [part for link in links for part in _contents(link)]
    sources = [link for link in links if not streams_below(link)]
    schemes = [list(all_schemes(getattr(source, "iteration_scheme", None))) for source in sources]
    if any(isinstance(part, (DealtStream, ShardedScheme)) for parts in (sources, *schemes) for part in parts):
        return f"{_PART} {fingerprint(*contents)}"
    for source, parts in zip(sources, schemes):
        if any(isinstance(part, (BatchScheme, IndexScheme)) for part in parts):
            continue
        # The server of a ServerDataStream, for instance, may divide the batches.
        if not hasattr(source, "dataset"):
            return "something else"
        # Without a scheme, only the attributes may depend on the rows.
        contents.append(_attributes(source.dataset, _DEPTH))
    return f"{_WHOLE} {fingerprint(*contents)}"


def _attributes(value: Any, depth: int) -> Any:
    """Return attributes for `fingerprint`, which uses only the class of most objects."""
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=True)[1:3]
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, (list, tuple)) and len(value) <= _ROWS:
        return [_attributes(part, depth) for part in value]
    if depth and hasattr(value, "__dict__") and not hasattr(value, "shape") and not callable(value):
        return [type(value).__name__, {name: _attributes(part, depth - 1) for name, part in vars(value).items()}]
    return value


def _kind(source: Any) -> str:
    return f"{type(getattr(source, 'dataset', None)).__name__} with {', '.join(source.sources)}"


def _contents(link: Any) -> list[Any]:
    """Return the contents by which links of different streams differ, for `fingerprint`."""
    if isinstance(link, DealtStream):
        return [link.uneven, *(part for below in all_streams(link.stream) for part in _contents(below))]
    scheme, dataset = getattr(link, "iteration_scheme", None), getattr(link, "dataset", None)
    found: list[Any] = [type(link).__name__, list(getattr(link, "sources", None) or ())]
    rows = None
    for part in all_schemes(scheme) if scheme is not None else ():
        found += [type(part).__name__, *(getattr(part, name, None) for name in ("batch_size", "uneven"))]
        if isinstance(part, (BatchScheme, IndexScheme)):
            indices = np.asarray(part.indices)
            found.append(indices)
            rows = indices if rows is None else rows
    if dataset is not None:
        found += [type(dataset).__name__, getattr(dataset, "num_examples", None)]
    if dataset is not None and rows is not None and len(rows):
        picked = rows[np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int)].tolist()
        # The same kind of requests as the scheme makes: batches or examples.
        requests = picked if scheme.requests_examples else [sorted(set(picked))]
        once, again = (fingerprint(*(list(link.get_data(request)) for request in requests)) for _ in range(2))
        # A data set that draws random numbers is not compared.
        if once == again:
            found.append(once)
    return found
