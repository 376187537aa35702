"""Draw the README's picture from the results of one run of benchmarks/learning.py: accuracy over steps.

    KERAS_BACKEND=torch python benchmarks/learning.py --task fashion-mnist --rates 0.002 --methods defaults \
        --workers 2 4 8 --seeds 1 2 3 --jobs 8
    python benchmarks/learning_picture.py docs/benchmarks/learning-defaults-fashion-mnist.json docs/learning

The second line writes docs/learning-light.svg and docs/learning-dark.svg.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import report
from learning_report import Arm
from scripts.learning_methods import PLAIN

SHOWN = (1, 2, 4)  # workers
COLORS = {
    "light": {"text": "#1f2328", "faint": "#d1d9e0", "lines": ("#6e7781", "#0969da", "#cf222e")},
    "dark": {"text": "#e6edf3", "faint": "#3d444d", "lines": ("#9198a1", "#58a6ff", "#ff7b72")},
}


def median_curve(runs: list[dict], arm: Arm) -> tuple[list[float], list[float]]:
    """Return steps and values, medians over the seeds."""
    curves = [run["curve"] for run in runs if Arm.of(run) == arm and run["curve"]]
    at = [report.median([point[0] for point in points]) for points in zip(*curves)]
    return at, [report.median([point[2] for point in points]) for points in zip(*curves)]


def arms(results: dict, method: str = "defaults") -> list[dict]:
    """Return the rows of the table that are shown: plain training at its best rate, then the method."""
    plain = [row for row in results["results"] if row["method"] == PLAIN and row["rate"] == results["best_rate"]]
    found = [row for row in results["results"] if row["method"] == method and row["workers"] in SHOWN]
    return [*plain, *sorted(found, key=lambda row: row["workers"])]


def label(row: dict, target: str) -> str:
    """Return the words beside a line."""
    steps = row["to_target"][target]["steps"]
    times = row["to_target"][target]["times_fewer_steps"]
    if row["method"] == PLAIN:
        return f"1 process: {steps:,.0f} steps"
    return f"{row['workers']} workers: {steps:,.0f} steps each, {times:.1f} times fewer"


def draw(results: dict, path: Path, mode: str) -> None:
    """Draw one picture, for light or for dark pages."""
    import matplotlib

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "platoon", "font.family": "sans-serif"})
    colors = COLORS[mode]
    target = f"{results['targets'][-1]:g}"
    figure, axes = report.figure(figsize=(7.5, 3.6))
    for row, color in zip(arms(results), colors["lines"]):
        at, values = median_curve(results["runs"], Arm.of(row))
        axes.plot(at, values, color=color, linewidth=2, label=label(row, target))
        axes.plot([row["to_target"][target]["steps"]], [float(target)], "o", color=color)
    axes.axhline(float(target), color=colors["faint"], linestyle="--", zorder=0)
    axes.set_xlim(0, 7000)
    axes.set_ylim(0.84, 0.9)
    axes.set_xlabel("steps of each worker (mini-batches of 128)")
    axes.set_ylabel("accuracy on Fashion-MNIST's test images")
    legend = axes.legend(loc="lower right", frameon=False, title=f"to {target}", labelcolor=colors["text"])
    for text in (legend.get_title(), axes.xaxis.label, axes.yaxis.label):
        text.set_color(colors["text"])
    axes.tick_params(colors=colors["text"])
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colors["faint"])
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})


def main(options: argparse.Namespace) -> None:
    results = json.loads(options.results.read_text())
    for mode in COLORS:
        draw(results, options.stem.with_name(f"{options.stem.name}-{mode}.svg"), mode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file of benchmarks/learning.py")
    parser.add_argument("stem", type=Path, help="path of the pictures, without -light.svg and -dark.svg")
    main(parser.parse_args())
