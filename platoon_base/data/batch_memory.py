"""The slots that hold batches: anonymous shared memory, passed as file descriptors.

Slots come from ``memfd_create(2)``, not /dev/shm: the kernel frees a slot with the last process
that has it, however that ends, and a container's small /dev/shm is not used.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from platoon_base.errors import BackendUnavailableError, ProtocolError
from platoon_base.layout import array_on
from platoon_base.system.limits import available_memory

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)  # Python 3.10 added the name.
_PAGE = mmap.PAGESIZE


class Slot:
    """Shared memory for one batch, mapped into this process; use `create` or `attach`."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        # The buffer is unmapped together with the last array on it.
        buffer = mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED | _POPULATE)
        self.memory: Any = array_on(buffer, (size_bytes,), np.uint8)

    @classmethod
    def create(cls, size_bytes: int) -> Slot:
        """Create a slot; the memory is reserved here, so that no later access can fail."""
        whole = max(1, -(-size_bytes // _PAGE)) * _PAGE
        free = available_memory()
        if whole > free:  # The kernel would kill a process instead of refusing.
            raise _out_of_memory_text(whole, free)
        fd = os.memfd_create("platoon-batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, whole)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)  # No process can truncate it now.
            return cls(fd, whole)
        except OSError as exc:
            os.close(fd)
            if exc.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            raise _out_of_memory_text(whole, free) from exc

    @classmethod
    def attach(cls, fd: int, size_bytes: int) -> Slot:
        """Map the memory of a received file descriptor, which is closed if it is refused."""
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ProtocolError("got memory for batches that its owner could truncate; refused")
            if os.fstat(fd).st_size != size_bytes:
                raise ProtocolError(f"got {os.fstat(fd).st_size} bytes of memory for a slot of {size_bytes}; refused")
            return cls(fd, size_bytes)
        except OSError as exc:
            os.close(fd)
            raise ProtocolError(f"got a file that cannot be the memory of a batch ({exc}); refused") from exc
        except ProtocolError:
            os.close(fd)
            raise

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.memory = None


class Slots:
    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._free: list[int] = []  # The last one is the latest: it is still in the caches.
        self._holders: list[int] = []

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    @property
    def size_bytes(self) -> int:
        return sum(slot.size_bytes for slot in self._slots)

    def take(self, size_bytes: int, forget: Callable[[int], None]) -> int:
        """Return a free slot; call ``forget(index)`` if one that was too small gets new memory."""
        fitting = [i for i, index in enumerate(self._free) if self._slots[index].size_bytes >= size_bytes]
        if fitting:
            return self._free.pop(fitting[-1])
        if not self._free:
            self._slots.append(Slot.create(size_bytes))
            self._holders.append(0)
            return len(self._slots) - 1
        index = self._free.pop()
        try:
            new = Slot.create(size_bytes)
        except BaseException:
            self._free.append(index)
            raise
        self._slots[index].close()
        self._slots[index] = new
        forget(index)
        return index

    def hold(self, index: int) -> None:
        self._holders[index] += 1

    def give_back(self, index: int) -> None:
        self._holders[index] -= 1
        if not self._holders[index]:
            self._free.append(index)

    def free_unless_held(self, index: int) -> None:
        if not self._holders[index]:
            self._free.append(index)

    def close(self) -> None:
        for slot in self._slots:
            slot.close()


class Held:
    """A slot that a script uses: ``on_release`` is called once the last array on it is dropped.

    NumPy keeps this object alive from every view on the memory, so no array ever shows another
    batch. Any thread may drop the last array.
    """

    def __init__(self, memory: Any, writable: bool, on_release: Callable[[], None]) -> None:
        interface = dict(memory.__array_interface__)
        interface["data"] = interface["data"][0], not writable
        self.__array_interface__ = interface
        self._memory = memory
        self._on_release = on_release

    def __del__(self) -> None:
        self._on_release()


def _out_of_memory_text(wanted: int, free: int) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"needs {wanted / 1e6:.0f} MB of memory for one more mini-batch, and "
        f"{free / 1e6:.0f} MB are free: make the batches smaller, or keep fewer of them "
        "ready (ahead=2)"
    )
