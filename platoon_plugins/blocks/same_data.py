"""Whether all workers have the same stream, where each takes its part of it, and none trains on the whole."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from typing import Any

import numpy as np
from fuel.schemes import BatchScheme, IndexScheme

from platoon_base import Worker
from platoon_base.fingerprint import fingerprint
from platoon_plugins.blocks.chains import chain_of
from platoon_plugins.blocks.schemes import ShardedScheme, all_schemes

__all__ = ["require_same_stream", "warn_if_not_sharded"]

log = logging.getLogger(__name__)

_REMEDY = (
    "Each worker takes its part of what all of them have alike, so all have to make the same stream: the same data "
    "set, and a scheme of the same rows in the same order. Give random splits and shuffles before it a seed, such as "
    "np.random.RandomState(0).permutation(rows): otherwise rows that one worker trains on would be among those that "
    "another validates on"
)
_ROWS = 16  # that are read of a data set
_calls: weakref.WeakKeyDictionary[Worker, Counter[str]] = weakref.WeakKeyDictionary()


def require_same_stream(stream: Any, worker: Worker, user: str) -> None:
    """Raise, on the worker that comes later, if two workers have made different streams; nobody waits.

    Compared are the chain of transformers, the schemes with their rows, and a few rows of the data sets. Streams are
    told apart by what they are made of, and counted: so one more stream of another kind on one worker harms nobody.

    Parameters
    ----------
    stream : AbstractDataStream
    worker : Worker
    user : str
        What takes a part of it.

    Raises
    ------
    ConfigurationError
        If another worker has made another one.
    """
    links = list(chain_of(stream))
    name = f"a stream of {_kind(links[-1])}, given to {user}"
    calls = _calls.setdefault(worker, Counter())
    name = f"{name[:200]}, {fingerprint(name)}" if len(name) > 200 else name
    calls[name] += 1
    contents = [part for link in links for part in _contents(link)]
    worker.require_same(f"{name}, call {calls[name]},", fingerprint(*contents), _REMEDY)


def warn_if_not_sharded(stream: Any, worker: Worker, name: str, *, timeout_s: float) -> None:
    """Tell if all workers train on the same rows; a collective call.

    Parameters
    ----------
    stream : AbstractDataStream or None
        That a worker trains on.
    worker : Worker
    name : str
        Of the training, the same on all workers.
    timeout_s : float
    """
    links = list(chain_of(stream))
    rank, whole = worker.global_rank, all(_is_whole(link) for link in links)
    mine = fingerprint(*(part for link in links for part in _contents(link))) if whole else f"of rank {rank} alone"
    told, ranks = worker.sum_pairs(f"the data of {name}", {mine: (1.0, 1.0)}, timeout_s=timeout_s)
    if told[mine][0] > 1 and len(told) == 1 and rank == ranks[0]:
        log.warning(
            "the %d workers train on the same data: each of them goes through all of it in every epoch; divide it "
            "among them by shard_stream(stream)",
            len(ranks),
        )


def _is_whole(link: Any) -> bool:
    """Tell whether a link of a chain is above others, or gives rows that a scheme names and nobody has dealt out."""
    if hasattr(link, "data_stream") or hasattr(link, "data_streams"):
        return True
    parts = list(all_schemes(getattr(link, "iteration_scheme", None)))
    names_rows = any(isinstance(part, (BatchScheme, IndexScheme)) for part in parts)
    return names_rows and not any(isinstance(part, ShardedScheme) for part in parts)


def _kind(source: Any) -> str:
    return f"{type(getattr(source, 'dataset', None)).__name__} with {', '.join(source.sources)}"


def _contents(link: Any) -> list[Any]:
    """Return what tells one link of a chain from another."""
    scheme, dataset = getattr(link, "iteration_scheme", None), getattr(link, "dataset", None)
    found: list[Any] = [type(link).__name__, list(link.sources)]
    rows = None
    for part in all_schemes(scheme) if scheme is not None else ():
        found += [type(part).__name__, getattr(part, "batch_size", None)]
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
        found += [list(link.get_data(request)) for request in requests]
    return found
