"""Help pages with examples first and options below headings."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

__all__ = ["Examples", "GroupedCommand", "did_you_mean", "write_examples"]

Examples = Sequence[tuple[str, str]]  # command lines, and what they do

_OTHERS = "Other options"


class GroupedCommand(click.Command):
    """A command whose help has examples, options below headings (``groups``), and notes."""

    def __init__(self, *args: Any, examples: Examples, groups: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._examples, self._groups = examples, groups

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        first, _, rest = inspect.cleandoc(self.help or "").partition("\n\n")
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(first)
        write_examples(formatter, self._examples)
        self.format_options(ctx, formatter)
        if rest:
            with formatter.section("Good to know"):
                formatter.write_text(rest)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        below = {name: heading for heading, names in self._groups.items() for name in names}
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*self._groups, _OTHERS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections[below.get(parameter.name or "", _OTHERS)].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def write_examples(formatter: click.HelpFormatter, examples: Examples) -> None:
    """Write command lines and, on separate lines for copying, what they do."""
    with formatter.section("Examples"):
        for line, meaning in examples:
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")
            with formatter.indentation():
                formatter.write_text(meaning)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(names), n=2)
    return f" Did you mean {' or '.join(near)}?" if near else ""
