"""What the scripts of the zoo share: their arguments, and what they measure of the training.

The seconds of load, compute, communicate and wait are those of the worker's own clock, from which `platoon launch
--report` makes its page (docs/report.md); nothing is timed twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import zoo_data

__all__ = ["PARTS", "RULES", "WARM_UP", "Measurement", "combine", "parser", "show"]

PARTS = ("load", "compute", "communicate", "wait")
RULES = ("bsp", "easgd", "default")
WARM_UP = 10  # steps of each worker that are not measured: compilation, first allocations


def parser(description: str, models: dict, image: int) -> argparse.ArgumentParser:
    """Return the arguments of both scripts."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", choices=sorted(models), default="resnet50")
    made.add_argument(
        "--rule", choices=RULES, default="bsp",
        help="bsp: averaged gradients in each step; easgd: EASGD() at its period; default: the rule of the package",
    )  # fmt: skip
    made.add_argument("--batch", type=int, default=32, help="images of a step of one worker  [32]")
    made.add_argument("--image", type=int, default=image, help=f"height and width of an image  [{image}]")
    made.add_argument("--width", type=float, default=1.0, help="times the network's filters and units  [1.0]")
    made.add_argument("--steps", type=int, default=50, help=f"that are measured, after {WARM_UP} others  [50]")
    made.add_argument("--data", choices=zoo_data.DATA, default="synthetic")
    made.add_argument("--rate", type=float, default=0.001, help="learning rate of momentum SGD  [0.001]")
    made.add_argument("--summary", type=Path, help="file for the measurement, as JSON")
    return made


class Measurement:
    """Measures the steps between `begin` and `end`; see `combine`.

    Parameters
    ----------
    worker : Worker
    options : Namespace
        Of `parser`.
    """

    def __init__(self, worker, options: argparse.Namespace) -> None:
        self._worker, self._options = worker, options

    def begin(self) -> None:
        """Begin to measure when all workers have come here."""
        self._worker.barrier("measure")
        self._before = self._worker.advanced.clock.seconds

    def end(self) -> None:
        """Stop measuring; call it after the last step."""
        self._after = self._worker.advanced.clock.seconds

    def result(self, loss: float, parameters: int) -> dict:
        """Return the measurement of the whole job, the same one on all workers."""
        options = self._options
        phases = {name: self._after[name] - self._before[name] for name in self._after}
        found = self._worker.gather([phases, loss], name="zoo")
        return {
            **{name: getattr(options, name) for name in ("model", "rule", "batch", "image", "width", "steps", "data")},
            "parameters": int(parameters),
            **combine([phases for phases, _ in found], options.batch, options.steps),
            "loss": sum(loss for _, loss in found) / len(found),
        }


def combine(phases: list[dict[str, float]], batch: int, steps: int) -> dict:
    """Return images per second of the job, and the milliseconds of a step by part, means over workers and steps.

    ::

        images/s    := images of all workers / seconds of the slowest worker
        communicate := synchronization + the shortest of all workers' times in collective calls
        wait        := waiting + the rest of the time in collective calls

    Workers leave a collective call together, so the one that spent the shortest time in them waited for nobody. Where
    the slowest worker is now this one and now that one, a part of the wait counts as communication.

    Parameters
    ----------
    phases : list of dict
        Of each worker, its seconds by phase as its clock has them; the clock is always in one phase.
    batch, steps : int
        Images of a step, and steps, of each worker.
    """
    workers = len(phases)
    exchange = min(each["collective"] for each in phases)
    sums = {
        "load": sum(each["loading"] for each in phases),
        "compute": sum(each["compute"] + each["validation"] for each in phases),
        "communicate": sum(each["sync"] + exchange for each in phases),
        "wait": sum(each["waiting"] + each["collective"] - exchange for each in phases),
    }
    return {
        "workers": workers,
        "images_per_s": batch * steps * workers / max(sum(each.values()) for each in phases),
        "step_ms": 1e3 * sum(sums.values()) / workers / steps,
        "parts_ms": {part: 1e3 * sums[part] / workers / steps for part in PARTS},
    }


def show(worker, result: dict, summary: Path | None) -> None:
    """Print the measurement on the first worker, report it to the launcher, and write it to the file."""
    worker.report({"images_per_s": result["images_per_s"]})
    if not worker.is_leader:
        return
    parts = ", ".join(f"{part} {result['parts_ms'][part]:.3g}" for part in PARTS)
    print(
        f"{result['model']} ({result['parameters']:,} parameters), {result['rule']}, {result['workers']} x "
        f"{result['batch']} images of {result['image']} x {result['image']}: {result['images_per_s']:.1f} images/s\n"
        f"a step, ms: {result['step_ms']:.4g} ({parts}); loss {result['loss']:.3f}"
    )
    if summary:
        summary.write_text(json.dumps(result, indent=1) + "\n")
