"""Changes to the user's extensions: run on the leader only, or with the center's values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from blocks.extensions import TrainingExtension

__all__ = ["all_extensions", "run_in_center", "run_on_leader"]

_CALLBACKS = ("before_epoch", "after_epoch", "after_batch", "after_training")

CenterOf = Callable[[Any], contextlib.AbstractContextManager[None]]
IsLeader = Callable[[Any], bool]


def all_extensions(extensions: Iterable[Any]) -> Iterator[Any]:
    for extension in extensions:
        yield extension
        managed = list(getattr(extension, "sub_extensions", ()))
        # EarlyStopping makes its Checkpoint a sub-extension only in before_training.
        managed += [getattr(extension, "checkpoint_extension", None)]
        yield from all_extensions(other for other in managed if other is not None)


class _OnLeader:
    """Replacement of an extension's ``dispatch``; it is pickled, so it holds no worker."""

    def __init__(self, extension: Any, is_leader: IsLeader) -> None:
        self._extension = extension
        self._is_leader = is_leader

    def __call__(self, callback_invoked: str, *from_main_loop: Any) -> None:
        if self._is_leader(self._extension.main_loop):
            type(self._extension).dispatch(self._extension, callback_invoked, *from_main_loop)


def run_on_leader(extension: Any, is_leader: IsLeader) -> None:
    """Make an extension run on the leader only; ``is_leader``, a module's function, is pickled."""
    if not isinstance(vars(extension).get("dispatch"), _OnLeader):
        extension.dispatch = _OnLeader(extension, is_leader)


class _InCenter:
    # The default for pickles of an earlier version.
    _name = "do"

    def __init__(self, extension: Any, name: str, center_of: CenterOf) -> None:
        self._extension = extension
        self._name = name
        self._center_of = center_of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._center_of(self._extension.main_loop):
            return getattr(type(self._extension), self._name)(self._extension, *args, **kwargs)


def run_in_center(extension: Any, center_of: CenterOf) -> None:
    """Run ``do``, or else the callbacks, with the center's values; ``center_of`` is pickled."""
    names = (
        ["do"]
        if hasattr(extension, "do")
        else [name for name in _CALLBACKS if getattr(type(extension), name) is not getattr(TrainingExtension, name)]
    )
    for name in names:
        if not isinstance(vars(extension).get(name), _InCenter):
            setattr(extension, name, _InCenter(extension, name, center_of))
