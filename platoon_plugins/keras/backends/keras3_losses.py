"""The divisor of a loss of Keras 3: the number of rows, of unmasked tokens, or a sum of weights."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
from keras.src.backend import get_keras_mask  # There is no public function.

from platoon_base.errors import ConfigurationError
from platoon_base.worker import warn_once
from platoon_plugins.keras.marks import patch
from platoon_plugins.keras.sums import ADDED

_watching = threading.local()


class Term(NamedTuple):
    """One loss of a model for a batch, with its ``values`` before the reduction."""

    loss: Any
    values: Any
    mask: Any
    sample_weight: Any


class BatchWeight(NamedTuple):
    """The weight of a batch's mean in the mean over all workers; 1 for a kind without divisor."""

    # Kinds: "rows", a mean over rows or equally many values of each row; "tokens", a mean whose
    # divisor varies; "sum"; "values", not reduced; "mixed", losses of different kinds.

    kind: str
    weight: Any


@contextlib.contextmanager
def watched() -> Iterator[list[Term]]:
    """List the losses that this thread computes within the ``with`` block."""
    patch(keras.losses.Loss, "__call__", _reporting)
    outer, _watching.terms = _terms(), []
    try:
        yield _watching.terms
    finally:
        _watching.terms = outer


def _terms() -> list[Term] | None:
    """Return the list for losses of this thread; None outside of `watched`."""
    terms: list[Term] | None = getattr(_watching, "terms", None)
    return terms


def _reporting(plain: Any, loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Compute a loss as Keras does, and append it to the list of this thread, if there is one."""
    terms = _terms()
    if terms is None:
        return plain(loss, y_true, y_pred, sample_weight)
    values: list[Any] = []
    own_call = loss.call

    def keep(*args: Any, **kwargs: Any) -> Any:
        values[:] = [own_call(*args, **kwargs)]
        return values[0]

    # Losses inside a loss are not listed.
    _watching.terms, loss.call = None, keep
    try:
        result = plain(loss, y_true, y_pred, sample_weight)
    finally:
        _watching.terms = terms
        del loss.call
    masks = [mask for mask in map(get_keras_mask, (y_pred, values[0])) if mask is not None]
    mask = masks[0] & masks[1] if len(masks) == 2 else masks[0] if masks else None
    terms.append(Term(loss, values[0], mask, sample_weight))
    return result


def batch_weight(terms: list[Term], rows: Any, model: Any) -> BatchWeight:
    """Return the weight of a batch, whose ``rows`` are a number or a tensor."""
    kinds = {_kind(term) for term in terms}
    if kinds <= {"rows"}:
        # The number of values in a row may differ between batches, as for padded sequences.
        single = len(terms) == 1 and _rank(terms[0].values)
        return BatchWeight("rows", _size(terms[0].values) if single else rows)
    added = len(model.losses)  # This walks through all layers.
    if kinds == {"sum"} and not added:
        return BatchWeight("sum", 1.0)
    if kinds == {"values"} and len(terms) == 1 and not added:
        return BatchWeight("values", 1.0)
    if kinds == {"tokens"} and len(terms) == 1 and (not added or added <= _of_weights(model)):
        return BatchWeight("tokens", _divisor(terms[0]))
    return BatchWeight("mixed", rows)


def require_one_kind(weight: BatchWeight, terms: list[Term]) -> None:
    """Raise if averaged gradients would differ from those of one process; warn if unknown."""
    if weight.kind == "mixed":
        raise ConfigurationError(
            "got losses that are divided by different numbers (of rows, of unmasked tokens, of "
            "weights, or by none, as sums are), including losses of layers: no average of the "
            "workers' gradients is the gradient of one process on all their rows; compile with "
            "the plain optimizer and a rule, such as rule=EASGD(), or give the model one loss"
        )
    names = [term.loss.name for term in terms if term.loss.reduction != "sum" and not _rank(term.values)]
    if names:
        warn_once(
            f"the loss {names[0]!r} returns one number for a batch, which is assumed to be a mean "
            "over rows. If it is divided by something else, such as a number of tokens, several "
            "workers do not train as one process does: return one value for each row or token, "
            "and let Keras apply the mask or the weights"
        )


def warn_of_added(model: Any) -> None:
    """Warn of losses that layers add, except those of regularizers."""
    known = _of_weights(model)
    layers = getattr(model, "_flatten_layers", lambda: ())()
    known += sum(getattr(layer, "activity_regularizer", None) is not None for layer in layers)
    if len(model.losses) > known:
        warn_once(ADDED)


def _of_weights(model: Any) -> int:
    return sum(getattr(v, "regularizer", None) is not None for v in model.trainable_variables)


def _kind(term: Term) -> str:
    reduction = term.loss.reduction
    if reduction == "sum":
        return "sum"
    if not _rank(term.values):
        return "rows"
    if reduction in (None, "none"):
        # TensorFlow computes the gradient of their sum, and Keras logs their mean.
        return "values"
    if reduction == "mean_with_sample_weight" and term.sample_weight is not None:
        return "tokens"
    return "rows" if term.mask is None else "tokens"


def _divisor(term: Term) -> Any:
    weighted = term.loss.reduction == "mean_with_sample_weight" and term.sample_weight is not None
    weights = keras.ops.cast(term.sample_weight, "float32") if weighted else None
    if term.mask is None:
        return keras.ops.sum(weights)
    mask = keras.ops.cast(term.mask, "float32")
    if weights is None:
        return keras.ops.sum(mask)
    if _rank(weights) > _rank(mask):
        weights = keras.ops.squeeze(weights, -1)
    elif _rank(weights) < _rank(mask):
        weights = keras.ops.expand_dims(weights, -1)
    return keras.ops.sum(mask * weights)


def _rank(tensor: Any) -> int:
    return len(tensor.shape)


def _size(tensor: Any) -> Any:
    shape = keras.ops.shape(tensor)
    if all(isinstance(length, int) for length in shape):
        return math.prod(shape)
    return keras.ops.prod(keras.ops.convert_to_tensor(shape, dtype="int32"))
