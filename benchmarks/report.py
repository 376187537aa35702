"""What the benchmarks share: the machine's description, the result files, tables."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
PACKAGES = (
    "numpy",
    "pyzmq",
    "msgspec",
    "Theano",
    "Lasagne",
    "blocks",
    "fuel",
    "Keras",
    "torch",
    "jax",
    "tensorflow-cpu",
    "tensorflow",
)


def machine() -> dict:
    """Describe this machine and the versions in use."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        **gpus(),
    }


def gpus() -> dict:
    """Name the GPUs and their driver, if there are any."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [line.split(", ") for line in found if line.count(", ") == 1]  # else an error of the driver
    return {"gpus": [name for name, _ in rows], "driver": rows[0][1]} if rows else {}


def table(title: str, headings: list[str], rows: list[list], width: int = 140) -> None:
    """Print a table."""
    shown = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for heading in headings:
        shown.add_column(heading, justify="right")
    for row in rows:
        shown.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=width).print(shown)


def goal(text: str, reached: float, wanted: float, at_least: bool = True) -> dict:
    """Print one line on a goal, and return it for the results."""
    ok = reached >= wanted if at_least else reached <= wanted
    sign = ">=" if at_least else "<="
    print(f"{'reached' if ok else 'MISSED '}  {text}: {reached:.3g} (goal {sign} {wanted:g})")
    return {"goal": text, "measured": reached, "wanted": f"{sign} {wanted:g}", "reached": ok}


def save(name: str, results: dict, folder: Path = FOLDER) -> Path:
    """Write results as JSON beside the machine's description; returns the path for the plot."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
    return folder / f"{name}.png"


def figure(**options):
    """Make a figure that is drawn without a display."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(**options)


median = statistics.median
