"""The differences between the back ends of Keras: one module with ``backend`` for each."""

from __future__ import annotations

import importlib
import importlib.util

import keras

from platoon_base.errors import BackendUnavailableError
from platoon_plugins.keras.backends.base import Backend

__all__ = ["current"]


def current() -> Backend:
    """Return the `Backend` for Keras in this process, or raise `BackendUnavailableError`."""
    name = f"{__name__}.{keras.backend.backend()}"
    if importlib.util.find_spec(name) is None:
        raise BackendUnavailableError(
            f"got Keras {keras.__version__} on {keras.backend.backend()}: training is distributed on torch, jax and "
            "tensorflow (Keras 3) and theano (Keras 2.3.1); set KERAS_BACKEND to one of them"
        )
    found: Backend = importlib.import_module(name).backend()
    return found
