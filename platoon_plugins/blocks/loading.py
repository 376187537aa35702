"""What was loaded must be the model that is trained."""

from __future__ import annotations

from typing import Any

from blocks.extensions.saveload import LOADED_FROM
from blocks.serialization import load_parameters

from platoon_base.errors import LayoutMismatchError

__all__ = ["require_loaded_model"]


def require_loaded_model(main_loop: Any) -> None:
    """Raise if `Load` read the parameters of another model, which Blocks itself only logs.

    Raises
    ------
    LayoutMismatchError
        If there are values of other parameters in the file, or some are missing.
    """
    path = main_loop.log.current_row.get(LOADED_FROM)
    if path is None:
        return
    with open(path, "rb") as file:
        loaded = load_parameters(file).keys()
    trained = main_loop.model.get_parameter_dict().keys()
    if loaded != trained:
        raise LayoutMismatchError(
            f"{path} has the parameters of another model: it lacks {_names(trained - loaded)} and has "
            f"{_names(loaded - trained)}; load what this model was saved to, or leave Load out to begin anew"
        )


def _names(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"
