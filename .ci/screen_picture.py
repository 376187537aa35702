"""Run a command on a terminal, and draw a screen from the second half of training: docs/screen.svg.

    python .ci/screen_picture.py docs/screen.svg platoon launch -n 2 train.py

It needs pyte, a terminal in Python. Make the picture again when the live table looks different.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import select
import struct
import sys
import termios
import time
from pathlib import Path

import pyte

COLUMNS, ROWS = 84, 24
EVERY_S = 0.5
SHOWN = "training"  # a word on the screen that is drawn
WIDTH, LINE, TOP = 740, 20, 58  # pixels
PLAIN, FAINT = "#d6deeb", "#8b949e"
COLORS = {
    "default": PLAIN, "white": PLAIN, "black": FAINT, "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
    "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea",
}  # fmt: skip
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def screens(command: list[str]) -> list[tuple[float, list]]:
    """Run the command to its end; return moments, and the rows of characters at each."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    found: list[tuple[float, list]] = []
    while True:
        if select.select([terminal], [], [], EVERY_S)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # it has ended
                break
            stream.feed(data)
        if not found or time.monotonic() - found[-1][0] > EVERY_S:
            rows = [[screen.buffer[y][x] for x in range(COLUMNS)] for y in range(ROWS)]
            found.append((time.monotonic(), rows))
    os.waitpid(pid, 0)
    return found


def line_of(row: list) -> str:
    """Return a row as the inside of a text element, in one span for each run of equal colours."""
    count = len("".join(char.data for char in row).rstrip())
    spans, at = "", 0
    while at < count:
        look = row[at].fg, row[at].bold
        end = next((i for i in range(at, count) if (row[i].fg, row[i].bold) != look), count)
        color = COLORS.get(look[0], f"#{look[0]}" if len(look[0]) == 6 else PLAIN)
        weight = ' font-weight="bold"' if look[1] else ""
        text = html.escape("".join(char.data for char in row[at:end]))
        spans, at = f'{spans}<tspan fill="{color}"{weight}>{text}</tspan>', end
    return spans


def picture(rows: list, command: list[str]) -> str:
    """Draw a terminal with the command and what it shows."""
    prompt = f'<tspan fill="{FAINT}">$ </tspan><tspan fill="{PLAIN}">{html.escape(" ".join(command))}</tspan>'
    lines = [prompt, *map(line_of, rows)]
    while not lines[-1]:
        lines.pop()
    height = LINE * len(lines) + TOP
    texts = [f'<text x="20" y="{TOP + LINE * i}" xml:space="preserve">{line}</text>' for i, line in enumerate(lines)]
    dots = [
        f'<circle cx="{22 + 20 * i}" cy="20" r="6" fill="{c}"/>'
        for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}" font-size="14">',
            "<title>The screen of platoon launch</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117" stroke="#30363d"/>',
            *dots,
            *texts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    path, command = Path(sys.argv[1]), sys.argv[2:]
    found = [rows for _, rows in screens(command)]
    texts = ["".join(char.data for row in rows for char in row) for rows in found]
    shown = [rows for rows, text in zip(found, texts) if SHOWN in text]
    path.write_text(picture(shown[len(shown) * 2 // 3], command))
