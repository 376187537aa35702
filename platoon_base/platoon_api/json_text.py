"""Requests and answers as JSON text, as the original sends them."""

from __future__ import annotations

import json
from typing import Any

from platoon_base.errors import ConfigurationError

__all__ = ["from_json", "to_json"]


def to_json(value: Any, what: str) -> str:
    """Encode plain data; raise if JSON has no form for it, such as for an array."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigurationError(
            f"got {what} that JSON cannot represent ({exc}): use numbers, strings, lists and "
            "dicts, such as float(x) for a NumPy scalar and x.tolist() for an array"
        ) from exc


def from_json(text: Any) -> Any:
    """Decode a value of `to_json`; raise if the other side does not use `platoon_api`."""
    try:
        return json.loads(text)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(
            f"got {str(text)[:100]!r}, which is not JSON ({exc}): worker and controller must both "
            "use platoon_base.platoon_api, or neither"
        ) from exc
