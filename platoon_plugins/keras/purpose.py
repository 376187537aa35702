"""Texts of what has to be the same on all workers, which they compare as a fit begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["described"]


def described(value: Any) -> str:
    """Return the same text for what means the same: objects by their class, functions by their name."""
    if isinstance(value, Mapping):
        there = sorted((str(key), each) for key, each in value.items() if each is not None)
        return ", ".join(f"{key}={described(each)}" for key, each in there)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(described, value))}]"
    if isinstance(value, (str, int, float, type(None))):
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))
