"""Control messages and users' values as bytes, in MessagePack, validated when they are decoded.

A message is one frame; the channel adds a request id. Decoding creates only plain data of the types
declared in `platoon_base.coordination.messages`: no code, and no objects chosen by the sender.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from platoon_base import errors
from platoon_base.coordination.messages import MAX_BYTES, PROTOCOL, Message, Reply, Request
from platoon_base.layout import require_plain
from platoon_base.system.text import legible

_MAX_WHY = 500  # Characters.

# Codes of extensions for the user's data: text that UTF-8 cannot hold, and a dict with such keys.
_TEXT, _PAIRS = 1, 2


def _of_extension(code: int, data: memoryview) -> Any:
    if code == _TEXT:
        return bytes(data).decode(errors="surrogatepass")
    if code == _PAIRS:
        return dict(_pairs.decode(data))
    raise ValueError(f"got extension {code}, which is unknown")


def _plain(value: Any) -> Any:
    """Return a NumPy scalar, or a 0-d array, as the number, text or bytes that it holds."""
    require_plain(value, "a value")
    item = value.item() if getattr(value, "shape", None) == () else None
    if isinstance(item, (bool, int, float, str, bytes)):
        return item
    if isinstance(item, np.floating):
        return float(item)  # `item` of a long double returns a long double.
    raise TypeError(f"got {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_values: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_of_extension)
_pairs: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[tuple[Any, Any]], ext_hook=_of_extension)
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request, ext_hook=_of_extension)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply, ext_hook=_of_extension)


def encode(message: Message) -> bytes:
    """Encode a message; raise `ProtocolError` if it is no plain data or larger than `MAX_BYTES`."""
    data = encode_value(message)
    if len(data) > MAX_BYTES:
        raise errors.ProtocolError(
            f"got a {type(message).__name__} message of {len(data)} bytes, and the limit is "
            f"{MAX_BYTES}: control messages are small; share arrays through init_shared_params"
        )
    return data


def encode_value(value: Any) -> bytes:
    """Encode plain data, including text that UTF-8 cannot hold; else raise `ProtocolError`."""
    try:
        try:
            return _encoder.encode(value)
        except UnicodeEncodeError:
            return _encoder.encode(_encodable(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise errors.ProtocolError(
            f"cannot encode {type(value).__name__}: {exc}; send only numbers, strings, lists and dicts"
        ) from exc


def _encodable(value: Any) -> Any:
    """Return a value that UTF-8 can hold: users' text is kept exactly, by extensions; other text is made legible."""
    if isinstance(value, Message):
        fields = msgspec.structs.asdict(value).items()
        users = ("info", "answer")
        return msgspec.structs.replace(value, **{n: (_encodable if n in users else _legible)(f) for n, f in fields})
    if isinstance(value, str):
        return value if _is_text(value) else msgspec.msgpack.Ext(_TEXT, value.encode(errors="surrogatepass"))
    if isinstance(value, dict):
        if all(map(_is_text, value)):
            return {key: _encodable(item) for key, item in value.items()}
        pairs = [(_encodable(key), _encodable(item)) for key, item in value.items()]
        return msgspec.msgpack.Ext(_PAIRS, _encoder.encode(pairs))
    return [_encodable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_text(value: Any) -> bool:
    return not isinstance(value, str) or legible(value) == value


def _legible(value: Any) -> Any:
    if isinstance(value, dict):
        return {_legible(name): _legible(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_legible(item) for item in value]
    return legible(value) if isinstance(value, str) else value


def decode_value(data: bytes) -> Any:
    return _values.decode(data)


def decode_request(data: bytes) -> Request:
    request: Request = _decode(_requests, data)
    return request


def decode_reply(data: bytes) -> Reply:
    reply: Reply = _decode(_replies, data)
    return reply


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise errors.ProtocolError(f"got a message of {len(data)} bytes, and the limit is {MAX_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as exc:
        why = str(exc)[:_MAX_WHY]  # The error may quote the whole message.
        raise errors.ProtocolError(
            f"got {len(data)} bytes that are not a message of protocol {PROTOCOL}: {why}"
        ) from exc
