"""The Keras that tests run with; a file that imports from here is skipped where there is none."""

import pytest

from platoon_base import compat

compat.apply()
keras = pytest.importorskip("keras", reason="needs Keras: `make test` runs this file in .venv, .venv-keras3, .venv-tf")

__all__ = ["KERAS_2", "keras", "needs_keras_3"]

KERAS_2 = keras.__version__.startswith("2.")
needs_keras_3 = pytest.mark.skipif(KERAS_2, reason="Keras 2 has no such feature: run it in .venv-keras3 (make test)")
