"""The base of streams that give the batches of another one, whose attributes they also have."""

from __future__ import annotations

from typing import Any

from fuel.streams import AbstractDataStream

__all__ = ["StreamAbove", "streams_below"]


class StreamAbove(AbstractDataStream):  # type: ignore[misc]
    """A stream above another one, for scripts that look for a data set: it has ``data_stream``, and what is below.

    Parameters
    ----------
    stream : AbstractDataStream

    Attributes
    ----------
    stream : AbstractDataStream
    """

    def __init__(self, stream: AbstractDataStream) -> None:
        super().__init__(axis_labels=stream.axis_labels)
        self.sources = tuple(stream.sources)
        self.produces_examples = stream.produces_examples
        self.stream = stream

    @property
    def data_stream(self) -> Any:
        """The stream below, by the name that Fuel's transformers have for it."""
        return self.stream

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "stream" not in vars(self):
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}")
        return getattr(self.stream, name)

    def reset(self) -> None:
        """Reset the stream that is read."""
        self.stream.reset()

    def next_epoch(self) -> None:
        """Switch the stream that is read to its next epoch."""
        self.stream.next_epoch()

    def close(self) -> None:
        """Close the stream that is read."""
        self.stream.close()


def streams_below(stream: Any) -> list[Any]:
    """Return the streams from which a transformer reads; none for a source, as streams above another count here."""
    if isinstance(stream, StreamAbove):
        return []
    merged = getattr(stream, "data_streams", None)
    if merged is None:
        below = getattr(stream, "data_stream", None)
        return [] if below is None else [below]
    return list(merged)
