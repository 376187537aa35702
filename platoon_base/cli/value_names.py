"""Guesses from the names of reported values: which are validation values, and for which higher is better."""

from __future__ import annotations

import re

__all__ = ["direction", "higher_is_better", "is_loss", "is_validation"]

_HIGHER = re.compile(r"acc|auc|precision|recall|f1|score|bleu|r2|psnr", re.IGNORECASE)
_VALIDATION = {"val", "valid", "validation", "validate", "test", "testing", "dev", "eval", "evaluation", "heldout"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")  # so valLoss is two
_LOSS = re.compile(r"loss|cost|error|nll|perplexity|mse|mae", re.IGNORECASE)


def is_validation(name: str) -> bool:
    """Return whether a value seems to be measured on data that is not trained on."""
    return any(word.lower() in _VALIDATION for word in _WORD.findall(name))


def is_loss(name: str) -> bool:
    """Return whether a value seems to be a loss or an error, so that lower is better."""
    return bool(_LOSS.search(name))


def higher_is_better(name: str) -> bool:
    """Return whether a value seems to be an accuracy or a score; an unknown name counts as a loss."""
    return bool(_HIGHER.search(name)) and not is_loss(name)


def direction(name: str) -> int:
    """Return 1 if higher is better, -1 if lower is, and 0 if the name does not say."""
    return -1 if is_loss(name) else 1 if higher_is_better(name) else 0
