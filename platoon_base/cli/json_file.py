"""Files that commands write at the end of a job, the event log among them; failures are reported."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from platoon_base.coordination.story import Entry, Story
from platoon_base.errors import ConfigurationError
from platoon_base.system.job_paths import path_of
from platoon_base.system.own_files import write_where_named, write_whole
from platoon_base.system.regular_files import open_regular
from platoon_base.system.text import legible

__all__ = [
    "as_json",
    "known_story",
    "no_job_fails_by",
    "read_story",
    "story_written",
    "write_bytes",
    "write_json",
    "write_text",
]

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


_FILE_BYTES = 2**22


@contextlib.contextmanager
def story_written(folder: Path, story: Story) -> Iterator[None]:
    """Write the event log to the folder of logs at the end of the ``with`` block."""
    try:
        yield
    finally:
        try:
            write_whole(path_of(folder, "story"), as_json(story.entries))
        except OSError as exc:
            log.warning("cannot write the event log of the job to %s: %s", folder, exc)


def as_json(entries: Sequence[Entry]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(entries), indent=2)


def known_story(folder: Path, reader: str) -> list[Entry]:
    """Return the event log in a folder; if it cannot be read, warn that ``reader`` has none."""
    try:
        return read_story(folder)
    except ConfigurationError as exc:
        log.warning("%s does not show the events of the job: %s", reader, exc)
        return []


def read_story(folder: Path) -> list[Entry]:
    try:
        with open_regular(path_of(folder, "story")) as file:
            return msgspec.json.decode(file.read(_FILE_BYTES), type=list[Entry])
    except (OSError, msgspec.MsgspecError) as exc:
        raise ConfigurationError(
            f"there is no event log in {folder}: {exc}; name a running job, or the folder with "
            "the logs of a job that has ended"
        ) from exc
