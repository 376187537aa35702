"""The file of ``--record-order``: a line of JSON about the run, and a line with rank and action for each turn."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from platoon_base.errors import ConfigurationError

__all__ = ["Header", "begin_order", "complete_order", "line_of", "read_order"]

FORMAT = 1
_END = b"end\n"
_DO_INSTEAD = "record a run that ends by itself, with platoon launch --record-order FILE"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a recorded run.

    Attributes
    ----------
    format : int
    version : str
        Of this package.
    workers, seed : int
    devices : list of str
    program : list of str
        The script and its arguments.
    """

    format: int = FORMAT
    version: str
    workers: int
    seed: int
    devices: list[str] = []
    program: list[str] = []


def begin_order(path: Path, header: Header) -> None:
    """Write a new file with the header alone."""
    path.write_bytes(msgspec.json.encode(header) + b"\n")


def line_of(rank: int, what: str) -> bytes:
    """Return the line of one turn."""
    return f"{rank} {what}\n".encode()


def complete_order(path: Path) -> None:
    """Mark the file as that of a run that came to its end."""
    with open(path, "ab") as file:
        file.write(_END)


def read_order(path: str | os.PathLike[str]) -> tuple[Header, list[tuple[int, str]]]:
    """Return the header, and the turns in their order.

    Raises
    ------
    ConfigurationError
        If it cannot be read, or is not that of a run that came to its end.
    """
    try:
        lines = Path(path).read_bytes().splitlines(keepends=True)
    except OSError as exc:
        raise ConfigurationError(f"the order in {path} cannot be read: {exc.strerror}; {_DO_INSTEAD}") from exc
    try:
        header = msgspec.json.decode(lines[0] if lines else b"", type=Header)
        if header.format != FORMAT:
            raise ConfigurationError(
                f"{path} is of format {header.format}, this version replays format {FORMAT}; use the version that "
                f"wrote it, {header.version}"
            )
        ended = lines[-1] == _END
        entries = [_entry(line, header.workers) for line in lines[1:-1] if ended]
    except (msgspec.MsgspecError, ValueError, IndexError) as exc:
        raise ConfigurationError(f"{path} is no record of an order ({exc}); {_DO_INSTEAD}") from exc
    if not ended:
        raise ConfigurationError(
            f"{path} is of a run that did not come to its end, or lost a worker, so it cannot be replayed to an end; "
            f"{_DO_INSTEAD}"
        )
    return header, entries


def _entry(line: bytes, workers: int) -> tuple[int, str]:
    rank, _, what = line.decode().rstrip("\n").partition(" ")
    if not rank.isdigit() or int(rank) >= workers or not what:
        raise msgspec.ValidationError(f"got the line {line[:80]!r}")
    return int(rank), what
