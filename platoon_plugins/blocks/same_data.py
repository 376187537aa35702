"""Check that all workers divide the same stream, and warn if all of them train on the whole."""

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
from platoon_plugins.blocks.streams import all_streams

__all__ = ["require_dealt_out", "require_same_stream"]

log = logging.getLogger(__name__)

_PART, _WHOLE = "a part of", "all of"
_ROWS = 16  # rows of a data set that are compared


def require_same_stream(stream: Any, worker: Worker, user: str) -> None:
    """Raise, on the worker that comes later, if two workers have made different streams; nobody waits.

    It compares the chain of transformers, the schemes with their rows, and a few rows of the data sets; see
    `Worker.require_same_data`.

    Parameters
    ----------
    stream : AbstractDataStream
    worker : Worker
    user : str
        The name of the function or extension that divides the stream.

    Raises
    ------
    ConfigurationError
        If another worker has made another stream.
    """
    links = list(all_streams(stream))
    worker.require_same_data(
        *(part for link in links for part in _contents(link)), kind=f"{_kind(links[-1])}, given to {user}"
    )


def require_dealt_out(stream: Any, worker: Worker, name: str, *, timeout_s: float) -> None:
    """Raise if workers train on parts of different streams; warn if all train on one whole stream. A collective call.

    Parameters
    ----------
    stream : AbstractDataStream or None
        The stream that this worker trains on.
    worker : Worker
    name : str
        Of the training, the same on all workers.
    timeout_s : float

    Raises
    ------
    ConfigurationError
        On all workers, if their parts are of different streams.
    """
    rank, mine = worker.global_rank, _what_is_read(stream)
    read = dict(worker.gather([rank, mine], name=f"the data of {name}", timeout_s=timeout_s))
    parts = {other: what for other, what in read.items() if what.startswith(_PART)}
    if len(set(parts.values())) > 1:
        of_each = ", ".join(f"worker {other} {what}" for other, what in sorted(parts.items()))
        raise ConfigurationError(f"the streams of {name} differ: {of_each}. {SAME_DATA_REMEDY}")
    if mine.startswith(_WHOLE) and len(read) > 1 and set(read.values()) == {mine} and rank == min(read):
        log.warning(
            "the %d workers train on the same data: each of them goes through all of it in every epoch; divide it "
            "among them by shard_stream(stream)",
            len(read),
        )


def _what_is_read(stream: Any) -> str:
    """Tell whether a stream gives a part of the rows that its schemes name, all of them, or others; and which rows."""
    links = list(all_streams(stream))
    contents = fingerprint(*(part for link in links for part in _contents(link)))
    of_each_source = [
        list(all_schemes(getattr(link, "iteration_scheme", None)))
        for link in links
        if not hasattr(link, "data_stream") and not hasattr(link, "data_streams")
    ]
    if any(isinstance(part, ShardedScheme) for parts in of_each_source for part in parts):
        return f"{_PART} {contents}"
    if all(any(isinstance(part, (BatchScheme, IndexScheme)) for part in parts) for parts in of_each_source):
        return f"{_WHOLE} {contents}"
    return "something else"


def _kind(source: Any) -> str:
    return f"{type(getattr(source, 'dataset', None)).__name__} with {', '.join(source.sources)}"


def _contents(link: Any) -> list[Any]:
    """Return the contents by which two links of a chain differ, for `fingerprint`."""
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
        # As the scheme would ask for them: in batches, or one by one.
        requests = picked if scheme.requests_examples else [sorted(set(picked))]
        once, again = (fingerprint(*(list(link.get_data(request)) for request in requests)) for _ in range(2))
        if once == again:  # not of a data set that draws random numbers
            found.append(once)
    return found
