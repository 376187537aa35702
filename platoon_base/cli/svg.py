"""Parts of the pictures that this package draws as SVG: drawings, scales, numbers on axes, thinned curves."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple, TypeVar

__all__ = ["COLORS", "LIGHT", "RULES", "WIDTH", "Drawing", "Scale", "sheet", "thinned", "xml_text"]

COLORS = ("#3b7dd8", "#e07b00", "#2e9e5b", "#d0408f", "#8a63d2", "#b08900", "#1d9aa8", "#c9504a", "#7a8794")
WIDTH = 420  # of a drawing
LIGHT = {"paper": "#ffffff", "ink": "#24292f", "faint": "#57606a", "line": "#d0d7de"}
RULES = """
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg .grid { stroke: var(--line); fill: none; }
svg .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; } svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
"""
_MOST_POINTS = 300  # of a curve
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TITLE, _BETWEEN = 26, 16  # heights of a title on a sheet, and what is free around each drawing
_T = TypeVar("_T")


class Drawing(NamedTuple):
    """A drawing below a title.

    Attributes
    ----------
    title : str
    names : tuple of str
        Of its curves.
    height : float
        In units of which the drawing is `WIDTH` wide.
    body : str
        Elements of SVG, for the style `RULES`.
    """

    title: str
    names: tuple[str, ...]
    height: float
    body: str

    def figure(self) -> str:
        """Return the drawing as HTML."""
        title = xml_text(self.title)
        picture = f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img"><title>{title}</title>'
        return f"<figure><figcaption>{title}</figcaption>\n{picture}\n{self.body}\n</svg></figure>"


class Scale(NamedTuple):
    """The values along one side of a panel, and the pixels to which they belong."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Return about five round numbers within the scale."""
        raw = ((self.high - self.low) or 1.0) / 5
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        first = math.ceil(self.low / step)
        return [step * each for each in range(first, first + 12) if step * each <= self.high]


def thinned(items: Sequence[_T], most: int = _MOST_POINTS) -> Sequence[_T]:
    """Return at most ``most`` of the items, evenly spread, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[each * (len(items) - 1) // (most - 1)] for each in range(most)]


def xml_text(text: str) -> str:
    """Return text for an element or attribute of XML, with escapes for the characters that XML does not have."""
    return escape(_NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text))


def sheet(drawings: Sequence[Drawing]) -> str:
    """Return drawings as one SVG in light colors, two in a row, for programs that know no variables of CSS."""
    columns = min(2, len(drawings)) or 1
    rows = [drawings[first : first + columns] for first in range(0, len(drawings), columns)]
    across, top, parts = columns * (WIDTH + _BETWEEN) + _BETWEEN, float(_BETWEEN), []
    for row in rows:
        for column, each in enumerate(row):
            left, high = _BETWEEN + column * (WIDTH + _BETWEEN), each.height + _TITLE
            parts += [
                f'<svg x="{left}" y="{top}" width="{WIDTH}" height="{high}" viewBox="0 {-_TITLE} {WIDTH} {high}">',
                f'<text class="title" y="-12">{xml_text(each.title)}</text>\n{each.body}\n</svg>',
            ]
        top += max(each.height for each in row) + _TITLE + _BETWEEN
    if not rows:
        parts, top = [f'<text x="{_BETWEEN}" y="{2 * _BETWEEN}">Nothing was reported.</text>'], 3.0 * _BETWEEN
    rules = re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], RULES)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{across}" height="{top}" viewBox="0 0 {across} {top}">'
    style = f"<style>{rules}svg .title {{ font-size: 14px; font-weight: 600; }}</style>"
    paper = f'<rect width="{across}" height="{top}" fill="{LIGHT["paper"]}"/>'
    return "\n".join([head, style, paper, *parts, "</svg>", ""])
