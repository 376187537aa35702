"""The shared memory of a group of ranks: one rank creates it, the others open it, and all find the same layout."""

from __future__ import annotations

import zlib
from typing import Any, NoReturn

import numpy as np

from platoon_base.collectives.host_exchange import BUFFERS, Memory
from platoon_base.errors import ConfigurationError
from platoon_base.shm.segments import Name, Segment
from platoon_base.views import array_on

__all__ = ["CHUNK_BYTES", "GroupSegment", "refuse_closed"]

MAGIC = b"PLTNCLTV"
VERSION = 1
CHUNK_BYTES = 1 << 18
DIRECT_BYTES = 1 << 13  # up to here, several ranks are quicker if each does all the work once than all a part of it
_HEADER = np.dtype(
    [("magic", "S8"), ("version", "u4"), ("size", "u4"), ("chunk_bytes", "u8"), ("direct_bytes", "u8"), ("ranks", "u4"),
     ("buffers", "u4")]
)  # fmt: skip


class GroupSegment:
    """The open shared memory of one group; use `create` or `attach`.

    The first page holds a header, the words of the exchange, and the reason why the group is broken. The lines and
    the slots of the ranks follow; see `Memory`.

    Attributes
    ----------
    segment : Segment
    ranks : tuple of int
        The job's ranks in the group.
    memory : Memory or None
        Views for the exchange of arrays; None after `close`.
    direct_bytes : int
        All-reduces up to this size are done by every rank for itself.
    """

    def __init__(self, segment: Segment, ranks: tuple[int, ...], owner: bool) -> None:
        header: Any = array_on(segment.buffer, (), _HEADER)
        self.segment = segment
        self.ranks = ranks
        self.memory: Memory | None = Memory(segment.buffer, len(ranks), header["chunk_bytes"].item())
        self.direct_bytes: int = header["direct_bytes"].item()
        self._owner = owner

    @classmethod
    def create(cls, name: Name, ranks: tuple[int, ...], chunk_bytes: int) -> GroupSegment:
        """Make the segment; parameters and errors as those of `HostCollective.create`."""
        if chunk_bytes < 4096 or chunk_bytes % 4096 or chunk_bytes // len(ranks) < 64:
            raise ConfigurationError(f"got chunk_bytes={chunk_bytes}: must be a multiple of 4096, 64 or more a rank")
        segment = Segment.create(name, Memory.size_bytes(len(ranks), chunk_bytes))
        header: Any = array_on(segment.buffer, (), _HEADER)
        header["version"], header["size"], header["buffers"] = VERSION, len(ranks), BUFFERS
        header["chunk_bytes"] = chunk_bytes
        # Two ranks move as much memory either way, and one meeting a step is less than two.
        header["direct_bytes"] = DIRECT_BYTES if len(ranks) > 2 else 2**62
        header["ranks"] = _fingerprint(ranks)
        header["magic"] = MAGIC
        return cls(segment, ranks, owner=True)

    @classmethod
    def attach(cls, name: Name, ranks: tuple[int, ...]) -> GroupSegment:
        """Open the segment that another rank has made; errors as those of `HostCollective.attach`."""
        segment = Segment.attach(name)
        if len(segment.buffer) >= _HEADER.itemsize:
            header: Any = array_on(segment.buffer, (), _HEADER)
            found = tuple(header[field].item() for field in ("magic", "version", "size", "ranks", "buffers"))
            known = found == (MAGIC, VERSION, len(ranks), _fingerprint(ranks), BUFFERS)
            if known and len(segment.buffer) == Memory.size_bytes(len(ranks), header["chunk_bytes"].item()):
                return cls(segment, ranks, owner=False)
            del header
        segment.close()
        raise ConfigurationError(
            f"the shared memory {name} was not made for a group of the ranks {ranks} by this version of this package; "
            "run the same script and the same installation on every worker"
        )

    @property
    def open_memory(self) -> Memory:
        """The memory, while it is open.

        Raises
        ------
        ConfigurationError
            After `close`.
        """
        if self.memory is None:
            refuse_closed()
        return self.memory

    def unlink(self) -> None:
        """Remove the segment's name, if this rank has made it and not removed the name before."""
        if self._owner:
            self._owner = False
            Segment.unlink(self.segment.name)

    def close(self) -> None:
        """Let go of the memory; a second call does nothing."""
        self.memory = None
        self.segment.close()


def refuse_closed() -> NoReturn:
    """Raise the error of a call after `HostCollective.close`."""
    raise ConfigurationError("got a call after close(): make a new group")


def _fingerprint(ranks: tuple[int, ...]) -> int:
    return zlib.crc32(repr(ranks).encode())
