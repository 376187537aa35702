"""Any text as bytes: paths, names and messages of exceptions may not be valid UTF-8."""

from __future__ import annotations

__all__ = ["legible", "to_bytes"]


def legible(text: str) -> str:
    """Return text that UTF-8 can encode, with escapes for lone surrogates (PEP 383)."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def to_bytes(text: str, size_bytes: int | None = None) -> bytes:
    """Encode any text as UTF-8, at most ``size_bytes``, without zero bytes, which end a text."""
    raw = text.encode(errors="backslashreplace").replace(b"\0", b"\\x00")
    if size_bytes is None or len(raw) <= size_bytes:
        return raw
    return raw[:size_bytes].decode(errors="ignore").encode()  # drop a partial character
