"""The layout of mini-batches in slots, and the messages between server and readers.

A batch is never pickled: its arrays are raw bytes in a slot, and a small message in MessagePack has
the dtype, shape and offset of each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Union

import msgspec
import numpy as np

from platoon_base.errors import ConfigurationError, ProtocolError
from platoon_base.layout import require_plain

PROTOCOL = 1
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


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A reader introduces itself; it may hold up to ``ahead`` batches."""

    protocol: int
    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
    ahead: Annotated[int, msgspec.Meta(ge=1, le=MAX_AHEAD)]


class Freed(msgspec.Struct, frozen=True, tag="freed", array_like=True):
    """A reader releases a slot; ``taken`` counts the batches that its script has received."""

    slot: _Count
    taken: _Count


class Bye(msgspec.Struct, frozen=True, tag="bye"):
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


class End(msgspec.Struct, frozen=True, tag="end"):
    """The end of an epoch; ``last``: of all data."""

    last: bool


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The server has failed, or refuses this reader."""

    why: _Text


_encoder = msgspec.msgpack.Encoder()
_of_reader: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[Hello, Bye])
_freed = msgspec.msgpack.Decoder(Freed)
_of_server: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[End, Failed])
_batch = msgspec.msgpack.Decoder(Batch)
_ARRAY = range(0x90, 0xA0)  # The first byte of a short MessagePack array.


def encode(message: msgspec.Struct) -> bytes:
    frame = _encoder.encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        raise ConfigurationError(
            f"got a batch whose description has {len(frame)} bytes, and the limit is "
            f"{MAX_FRAME_BYTES}: send fewer arrays, with shorter names"
        )
    return frame


def decode_from_reader(frame: bytes) -> Hello | Freed | Bye:
    found: Hello | Freed | Bye = _decode(_freed if frame[:1] and frame[0] in _ARRAY else _of_reader, frame)
    return found


def decode_from_server(frame: bytes) -> Batch | End | Failed:
    """Decode a message of a server; check that a batch's arrays lie within its slot."""
    found: Batch | End | Failed = _decode(_batch if frame[:1] and frame[0] in _ARRAY else _of_server, frame)
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
        raise ProtocolError(f"got {len(frame)} bytes that are not a message about batches: {str(exc)[:300]}") from exc


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
