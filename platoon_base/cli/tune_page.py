"""The page of `platoon tune --report`: advice, picture and table in one file of HTML that loads nothing."""

from __future__ import annotations

import io
import time
from html import escape

from rich.console import Console

from platoon_base.cli.halving import drop_text
from platoon_base.cli.run_page import STYLE
from platoon_base.cli.study import choose, outcomes
from platoon_base.cli.tune import Study, Tuning
from platoon_base.cli.tune_picture import picture
from platoon_base.cli.tune_report import print_advice, table_rows

__all__ = ["tune_page"]

_WIDTH = 10_000  # no line of the advice is broken
_OWN_STYLE = ".wide svg { min-width: 760px; } pre { background: var(--soft); padding: 8px 12px; }"


def tune_page(tuning: Tuning, study: Study) -> str:
    """Return the page about a study that has ended, or was interrupted.

    Parameters
    ----------
    tuning : Tuning
    study : Study
    """
    title = " ".join(["platoon tune", *tuning.program.argv, *tuning.args])
    workers = f"{len(tuning.devices)} workers"
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}{_OWN_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="faint">{when}, {workers}, {len(study.trials)} runs, logs in {escape(str(tuning.folder))}</p>',
        *_findings(tuning, study),
        "</body></html>",
        "",
    ]
    return "\n".join(parts)


def _findings(tuning: Tuning, study: Study) -> list[str]:
    watched = study.watched
    failed = [trial for trial in study.trials if trial.failed]
    lost = [f'<li class="bad">A run of {escape(each.method.name)} failed.</li>' for each in failed]
    if study.interrupted:
        lost.append('<li class="note">The study was interrupted: not all runs were made.</li>')
    if watched is None:
        lost.append('<li class="bad">No run has reported a value to compare.</li>')
        return [f'<ul class="verdict">{"".join(lost)}</ul>']
    found = outcomes(study.trials, watched, study.end, tuning.by)
    best, reason = choose(found, tuning.default, watched)
    take = f"Nothing to take: {reason}." if best is None else f"Take {best.method.name}: {reason}."
    level = "note" if best is None or best.method.plain else "good"
    advice = io.StringIO()
    print_advice(Console(file=advice, width=_WIDTH, markup=False), found, watched, tuning, study.trials)
    head, *rows = table_rows(found, watched, tuning)
    drops = [
        f"{each.method.name} was {drop_text(each.dropped, watched)}." for each in found if each.dropped is not None
    ]
    better = "higher" if watched.higher else "lower"
    return [
        f'<ul class="verdict"><li class="{level}">{escape(take)}</li>{"".join(lost)}</ul>',
        f"<pre>{escape(advice.getvalue().strip())}</pre>",
        "<h2>Methods</h2>",
        f'<div class="wide"><table>{_row("th", head)}{"".join(_row("td", row) for row in rows)}</table></div>',
        f'<p class="faint">{escape(watched.name)}: {better} is better. Steps are those of each worker.</p>',
        *(f'<p class="faint">{escape(drop)}</p>' for drop in drops),
        "<h2>Curves</h2>",
        f'<div class="wide">{picture(tuning.program.title, study.trials, watched, study.rungs, tuning.by)}</div>',
    ]


def _row(tag: str, cells: list[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
