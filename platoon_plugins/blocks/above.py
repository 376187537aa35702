"""The base of streams that yield the batches of another stream and have its attributes."""

from __future__ import annotations

from typing import Any

from fuel.streams import AbstractDataStream

__all__ = ["StreamAbove", "streams_below"]


class StreamAbove(AbstractDataStream):  # type: ignore[misc]
    """A stream above another one; attributes that it lacks are those of ``stream``."""

    def __init__(self, stream: AbstractDataStream) -> None:
        super().__init__(axis_labels=stream.axis_labels)
        self.sources = tuple(stream.sources)
        self.produces_examples = stream.produces_examples
        self.stream = stream

    @property
    def data_stream(self) -> Any:
        """The stream below, under the name of Fuel's transformers."""
        return self.stream

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "stream" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.stream, name)

    def reset(self) -> None:
        self.stream.reset()

    def next_epoch(self) -> None:
        self.stream.next_epoch()

    def close(self) -> None:
        self.stream.close()


def streams_below(stream: Any) -> list[Any]:
    """Return the streams that a transformer reads; none for a source or a `StreamAbove`."""
    if isinstance(stream, StreamAbove):
        return []
    merged = getattr(stream, "data_streams", None)
    if merged is None:
        below = getattr(stream, "data_stream", None)
        return [] if below is None else [below]
    return list(merged)
