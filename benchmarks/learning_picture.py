"""Draw the README's picture from the results of one run of benchmarks/learning.py: accuracy over steps.

    KERAS_BACKEND=torch python benchmarks/learning.py --task fashion-mnist --rates 0.002 --methods defaults \
        --workers 2 4 8 --seeds 1 2 3 --jobs 8
    python benchmarks/learning_picture.py docs/benchmarks/learning-defaults-fashion-mnist.json docs/learning

The second line writes docs/learning-light.svg and docs/learning-dark.svg.
"""

import json
import sys
from pathlib import Path

from learning import Arm, median_curve
from learning_tasks import PLAIN

SHOWN = (1, 2, 4)  # workers
COLORS = {
    "light": {"text": "#1f2328", "faint": "#d1d9e0", "lines": ("#6e7781", "#0969da", "#cf222e")},
    "dark": {"text": "#e6edf3", "faint": "#3d444d", "lines": ("#9198a1", "#58a6ff", "#ff7b72")},
}


def arms(results, method="defaults"):
    plain = [row for row in results["results"] if row["method"] == PLAIN and row["rate"] == results["best_rate"]]
    found = [row for row in results["results"] if row["method"] == method and row["workers"] in SHOWN]
    return [*plain, *sorted(found, key=lambda row: row["workers"])]


def label(row, target):
    steps, times = (row["to_target"][target][name] for name in ("steps", "times_fewer_steps"))
    if row["method"] == PLAIN:
        return f"1 process: {steps:,.0f} steps"
    return f"{row['workers']} workers: {steps:,.0f} steps each, {times:.1f} times fewer"


def draw(results, path, mode):
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "platoon", "font.family": "sans-serif"})
    colors, target = COLORS[mode], f"{results['targets'][-1]:g}"
    figure = Figure(figsize=(7.5, 3.6))
    axes = figure.subplots()
    for row, color in zip(arms(results), colors["lines"]):
        at, values = median_curve(results["runs"], Arm.of(row))
        axes.plot(at, values, color=color, linewidth=2, label=label(row, target))
        axes.plot([row["to_target"][target]["steps"]], [float(target)], "o", color=color)
    axes.axhline(float(target), color=colors["faint"], linestyle="--", zorder=0)
    axes.set(xlim=(0, 7000), ylim=(0.84, 0.9), xlabel="steps of each worker (mini-batches of 128)")
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


if __name__ == "__main__":
    for mode in COLORS:
        draw(json.loads(Path(sys.argv[1]).read_text()), Path(f"{sys.argv[2]}-{mode}.svg"), mode)
