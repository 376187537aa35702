"""Mini-batches in slots of shared memory: their layout, and the messages about them.

A batch is never pickled: its arrays are raw bytes in a slot, and a small message in MessagePack has
the dtype, shape and offset of each.
Slots come from ``memfd_create(2)``, not /dev/shm: the kernel frees a slot with the last process
that has it, however that ends, and a container's small /dev/shm is not used.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import math
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, Union

import msgspec
import numpy as np

from platoon_base.errors import BackendUnavailableError, ConfigurationError, ProtocolError
from platoon_base.layout import array_on, require_plain
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


MAX_FRAME_BYTES = 1 << 16  # Unix sockets have larger buffers.
MAX_AHEAD = 64  # The most batches that one reader may hold.
MAX_ARRAYS, _MAX_NAME = 256, 100
_MAX_DIMENSIONS = 32
_ALIGN = 64  # The bytes of a cache line.
_KINDS = "?biufcSUmM"  # Not "O", which holds addresses, nor "V", which has lost its meaning.

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Text = Annotated[str, msgspec.Meta(max_length=8000)]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One array of a batch: its dtype in NumPy's notation, its shape, and its offset in bytes."""

    dtype: Annotated[str, msgspec.Meta(max_length=40)]
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    offset: _Count

    @property
    def size_bytes(self) -> int:
        return _size_bytes(self.dtype, self.shape)


@functools.lru_cache(maxsize=1 << 10)  # Most batches are alike.
def _size_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


class Hello(msgspec.Struct, frozen=True, tag="hello", array_like=True):
    """A reader introduces itself; it may hold up to ``ahead`` batches."""

    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
    ahead: Annotated[int, msgspec.Meta(ge=1, le=MAX_AHEAD)]


class Freed(msgspec.Struct, frozen=True, tag="freed", array_like=True):
    """A reader releases a slot; ``taken`` counts the batches that its script has received."""

    slot: _Count
    taken: _Count


class Bye(msgspec.Struct, frozen=True, tag="bye", array_like=True):
    """A reader leaves."""


class Batch(msgspec.Struct, frozen=True, tag="batch", array_like=True):
    """A batch in a slot.

    ``new``: the message carries the slot's memory, which this reader has not mapped yet.
    ``shared``: other readers have it too. ``names`` are the keys of a dict.
    """

    slot: _Count
    slot_bytes: _Count
    new: bool
    shared: bool
    form: Annotated[str, msgspec.Meta(pattern="^(array|tuple|list|dict)$")]
    names: Annotated[list[Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]], msgspec.Meta(max_length=MAX_ARRAYS)]
    parts: Annotated[list[Part], msgspec.Meta(max_length=MAX_ARRAYS)]


class End(msgspec.Struct, frozen=True, tag="end", array_like=True):
    """The end of an epoch; ``last``: of all data."""

    last: bool


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """The server has failed, or refuses this reader."""

    why: _Text


_encoder = msgspec.msgpack.Encoder()
_of_reader: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[Hello, Freed, Bye])
_of_server: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[Batch, End, Failed])


def encode(message: msgspec.Struct) -> bytes:
    frame = _encoder.encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        raise ConfigurationError(
            f"got a batch whose description has {len(frame)} bytes, and the limit is "
            f"{MAX_FRAME_BYTES}: send fewer arrays, with shorter names"
        )
    return frame


def decode_from_reader(frame: bytes) -> Hello | Freed | Bye:
    found: Hello | Freed | Bye = _decode(_of_reader, frame)
    return found


def decode_from_server(frame: bytes) -> Batch | End | Failed:
    """Decode a message of a server; check that a batch's arrays lie within its slot."""
    found: Batch | End | Failed = _decode(_of_server, frame)
    if isinstance(found, Batch):
        for part in found.parts:
            _require_inside(part, found.slot_bytes)
        if found.form == "dict" and len(set(found.names)) != len(found.parts):
            raise ProtocolError(f"got a batch of {len(found.parts)} arrays with {len(set(found.names))} names; refused")
        if found.form == "array" and len(found.parts) != 1:
            raise ProtocolError(f"got {len(found.parts)} arrays for a batch of one; refused")
    return found


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: bytes) -> Any:
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise ProtocolError(
            f"got {len(frame)} bytes that are not a message about batches: {str(exc)[:300]}. If the server and its "
            "readers have other versions, install one version of this package everywhere"
        ) from exc


@functools.lru_cache(maxsize=1 << 10)
def _require_inside(part: Part, slot_bytes: int) -> None:
    try:
        plain = np.dtype(part.dtype).kind in _KINDS
    except (TypeError, ValueError, SyntaxError):
        plain = False
    if not plain:
        raise ProtocolError(f"got an array of dtype {part.dtype!r}, which is not plain data; refused")
    if part.offset + part.size_bytes > slot_bytes:
        raise ProtocolError(
            f"got an array of {part.size_bytes} bytes from byte {part.offset} on in a slot of {slot_bytes}; refused"
        )


class Plan(NamedTuple):
    parts: list[Part]
    size_bytes: int


def flatten(batch: Any) -> tuple[str, list[str], list[Any]]:
    """Return a batch's form, the names of a dict, and the arrays."""
    names: list[str] = []
    if isinstance(batch, dict):
        form, names, items = "dict", list(batch), list(batch.values())
        if not all(isinstance(name, str) and len(name) <= _MAX_NAME for name in names):
            raise ConfigurationError(f"got a batch with the names {names!r}: they must be strings of 1 to {_MAX_NAME}")
    elif isinstance(batch, (tuple, list)):
        form, items = ("tuple" if isinstance(batch, tuple) else "list"), list(batch)
    else:
        form, items = "array", [batch]
    if len(items) > MAX_ARRAYS:
        raise ConfigurationError(
            f"got a batch of {len(items)} arrays, and the limit is {MAX_ARRAYS}: stack the rows "
            "into one array with numpy.stack(rows)"
        )
    for number, item in enumerate(items):
        require_plain(item, f"array {number} of a batch")
    arrays = [np.asarray(item) for item in items]
    return form, names, arrays


def _require_plain(dtype: Any) -> None:
    if dtype.kind not in _KINDS or dtype.hasobject:
        raise ConfigurationError(
            f"got an array of dtype {dtype}: batches hold plain numbers and strings of fixed "
            "length. Pass arrays of one dtype and equal rows, and other types as a view, such as "
            "x.view('uint16') for bfloat16"
        )


def plan(shapes: Sequence[tuple[tuple[int, ...], Any]]) -> Plan:
    """Return the layout of arrays in a slot: each begins at a new cache line."""
    return _plan(tuple((tuple(map(int, shape)), np.dtype(dtype)) for shape, dtype in shapes))


@functools.lru_cache(maxsize=1 << 10)
def _plan(shapes: tuple[tuple[tuple[int, ...], Any], ...]) -> Plan:
    parts, offset = [], 0
    for shape, dtype in shapes:
        _require_plain(dtype)
        part = Part(dtype.str, shape, offset)
        parts.append(part)
        offset += -(-part.size_bytes // _ALIGN) * _ALIGN
    return Plan(parts, offset)


def arrays_on(memory: Any, parts: Sequence[Part]) -> list[Any]:
    return [memory[part.offset : part.offset + part.size_bytes].view(part.dtype).reshape(part.shape) for part in parts]


def unflatten(form: str, names: Sequence[str], arrays: list[Any]) -> Any:
    if form == "dict":
        return dict(zip(names, arrays))
    if form == "array":
        return arrays[0]
    return tuple(arrays) if form == "tuple" else arrays
