"""Any text as bytes: paths, names and messages of exceptions may not be valid UTF-8."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a question with the names that are most like a word; empty if none is."""
    import difflib

    near = difflib.get_close_matches(word, list(names), n=2)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def legible(text: str) -> str:
    """Return text that UTF-8 can encode, with escapes for lone surrogates (PEP 383)."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def to_bytes(text: str, size_bytes: int | None = None) -> bytes:
    """Encode any text as UTF-8, at most ``size_bytes``, without zero bytes, which end a text."""
    raw = text.encode(errors="backslashreplace").replace(b"\0", b"\\x00")
    if size_bytes is None or len(raw) <= size_bytes:
        return raw
    return raw[:size_bytes].decode(errors="ignore").encode()  # A partial character is dropped.
