"""Files that commands write at the end of a job; a failed write does not change the outcome."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from platoon_base.errors import ConfigurationError
from platoon_base.system.own_files import write_where_named
from platoon_base.system.text import legible

__all__ = ["no_job_fails_by", "write_bytes", "write_json", "write_text"]

log = logging.getLogger(__name__)


@contextlib.contextmanager
def no_job_fails_by(what: str) -> Iterator[None]:
    """Log an error of the ``with`` block; it does not change the job's outcome."""
    try:
        yield
    except Exception:
        log.exception("cannot make %s; the job's outcome does not change. Please report this bug", what)


def write_json(path: Path, values: Mapping[str, Any]) -> bool:
    """Write values as JSON, with NaN and infinity as null; return whether that succeeded."""
    text = json.dumps(_plain(values), indent=2) + "\n"
    return write_text(path, text, "the summary", f". It is:\n{text}")


def write_text(path: Path, text: str, what: str, instead: str = "\n") -> bool:
    """Write a text as `write_bytes` does, with escapes for lone surrogates."""
    return write_bytes(path, legible(text).encode(), what, instead)


def write_bytes(path: Path, data: bytes, what: str, instead: str = "\n") -> bool:
    """Write a file, or print why not, and ``instead``, and remove an old one; return success."""
    try:
        write_where_named(path, data)
    except ConfigurationError as exc:  # A symbolic link of another user stays.
        click.echo(f"platoon: did not write {what}: {exc}{instead}", err=True, nl=False)
        return False
    except OSError as exc:
        if path.is_file():
            try:
                path.unlink()
            except OSError as error:
                click.echo(f"platoon: {path} is from an earlier job and cannot be removed: {error.strerror}", err=True)
        reason = exc.strerror or exc
        click.echo(f"platoon: cannot write {what} to {path} ({reason}){instead}", err=True, nl=False)
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
