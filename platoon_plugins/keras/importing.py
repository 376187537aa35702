"""The import of Keras, with a clear error if its back end is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import os

from platoon_base.errors import BackendUnavailableError

__all__ = ["require_backend"]

_BACKENDS = ("torch", "jax", "tensorflow", "theano")


def require_backend() -> None:
    """Import Keras; raise `BackendUnavailableError` if Keras or its back end is not installed."""
    try:
        importlib.import_module("keras")
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if missing == "keras":
            raise BackendUnavailableError(
                "Keras is not installed here: pip install 'platoon-plugins[keras]', and torch, jax or tensorflow"
            ) from exc
        if missing not in _BACKENDS:
            raise
        usable = [name for name in _BACKENDS if name != missing and importlib.util.find_spec(name) is not None]
        chosen = os.environ.get("KERAS_BACKEND")
        why = f"KERAS_BACKEND={chosen}" if chosen else "its default, or keras.json"
        set_it = f"set KERAS_BACKEND={' or '.join(usable)}, which is installed, or " if usable else ""
        raise BackendUnavailableError(
            f"Keras runs on {missing} here ({why}), which is not installed: {set_it}pip install {missing}"
        ) from exc
