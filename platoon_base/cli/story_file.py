"""The file with the event log of a job, in the folder of its logs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from platoon_base.coordination.story import Entry, Story
from platoon_base.errors import ConfigurationError
from platoon_base.system.job_paths import path_of
from platoon_base.system.own_files import write_whole
from platoon_base.system.regular_files import open_regular

__all__ = ["as_json", "known_story", "read_story", "story_written"]

log = logging.getLogger(__name__)

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
