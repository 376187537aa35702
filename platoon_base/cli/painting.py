"""The colours of the table of a running job, and whether a terminal shows more than ASCII."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from platoon_base.cli.history import BLOCKS
from platoon_base.cli.table import Line

__all__ = ["painted", "shows_ascii_only"]

_STYLES = {"title": "bold", "heading": "dim"}  # whole lines
_TREND = (rf"[{BLOCKS}]+", "cyan")
_PARTS = {
    "bar": ((r"^[█#]+", "green"), (r"[░-]+(?=  )", "dim")),
    "workers": (
        (r"\btraining\b", "green"),
        (r"\b(?:importing|joined|compiling|waiting)\b", "yellow"),
        (r"\b(?:lost|interrupted|no step for \d+ \w+(?: \d+ min)?)", "bold red"),
        _TREND,
    ),
    "total": ((r"^stopping:.*", "bold yellow"),),
    "values": ((r"CHECKPOINTS MISSED \d+", "bold red"), (r"best \S+(?: in epoch \d+)?$", "green"), _TREND),
}


def painted(lines: Iterable[Line]) -> Text:
    """Return the table in colours; rich drops them where NO_COLOR is set."""
    text = Text(no_wrap=True, overflow="crop")
    for i, line in enumerate(lines):
        part = Text(("\n" if i else "") + line.text, style=_STYLES.get(line.kind, ""))
        for pattern, style in _PARTS.get(line.kind, ()):
            part.highlight_regex(re.compile(pattern, re.MULTILINE), style)
        text.append_text(part)
    return text


def shows_ascii_only(console: Console, environment: Mapping[str, str] | None = None) -> bool:
    """Return whether the encoding or the locale is not UTF-8, and would garble bars."""
    environment = os.environ if environment is None else environment
    language, characters = environment.get("LANG", ""), environment.get("LC_CTYPE", "")
    if characters == "C.UTF-8" and language in ("", "C", "POSIX"):
        characters = ""  # Python has set it for its own use only.
    locale = environment.get("LC_ALL") or characters or language
    names = (console.encoding, locale.partition(".")[2].partition("@")[0])
    return any(name.lower().replace("-", "") != "utf8" for name in names)
