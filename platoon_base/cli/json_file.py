"""The files that commands write at the end of a job: as JSON, and without harm to the outcome where that fails."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from platoon_base.errors import ConfigurationError
from platoon_base.system.own_files import write_where_named

__all__ = ["write_json"]


def write_json(path: Path, values: Mapping[str, Any]) -> bool:
    """Write values as JSON, which knows no NaN and no infinity: null stands for them.

    If they cannot be written, standard error gets the reason and the values. A file that holds a part of them, or those
    of an earlier job, is removed.

    Returns
    -------
    bool
        Whether the values are written.
    """
    text = json.dumps(_plain(values), indent=2) + "\n"
    try:
        write_where_named(path, text.encode())
    except ConfigurationError as exc:  # a link of another user: it stays as it is
        click.echo(f"platoon: the summary is not written: {exc}. It is:\n{text}", err=True, nl=False)
        return False
    except OSError as exc:
        if path.is_file():
            try:
                path.unlink()
            except OSError as error:
                click.echo(f"platoon: {path} is not of this job, and cannot be removed: {error.strerror}", err=True)
        reason = exc.strerror or exc
        click.echo(f"platoon: the summary cannot be written to {path} ({reason}). It is:\n{text}", err=True, nl=False)
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
