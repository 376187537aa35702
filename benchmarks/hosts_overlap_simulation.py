"""Rounds between hosts in fragments, overlapped with training, or in pairs: what is learned, and from which link on.

    python benchmarks/hosts_overlap_simulation.py [--quick]

W hosts with one worker each train a perceptron on handwritten digits with Adam, in one process: data and optimizer of
hosts_compression_simulation.py, 26,000 weights. The methods' equations are in scripts/simulated_rounds.py: rounds of
LocalSGD and DiLoCo as they are, which all wait for (the reference); the same with the result merged tau steps after a
contribution was taken, in one piece or in four equal slices in turn (streaming DiLoCo, arXiv 2501.18512); random pairs
(NoLoCo, arXiv 2506.10911) of four hosts; AveragedEASGD on two, with exchanges in the background. Losses are those of
the center after 600 steps and a last round that is waited for; of pairs those of the mean of all hosts.

"Over" compares the loss with that of the reference by the same rule and H; means over the seeds with standard errors.
"Worth" is the number of steps after which rounds of LocalSGD each 20 steps reach that training loss, over 600. "Speed"
is worth times the share of the time in training, by the model of docs/slow_links.md: 1 is LocalSGD each 20 steps on a
link that takes no time.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import report
from scripts.simulated_perceptrons import Workers
from scripts.simulated_rounds import ELASTIC, RULES, SLOW, Elastic, Method, hosts_of

SEEDS, STEPS, REFERENCE_STEPS = 6, 600, 3000
PERIODS, FRAGMENTS = (20, 50), 4
STEP_S, SIZE_BYTES = 0.1, 100e6
BASE_S = 0.001  # a of docs/hosts_costs.md
ROUND_S = 0.35  # c n: what was left of two rounds of 100 MB in docs/benchmarks/slow-links.md, without the link
MEMORY_S = SIZE_BYTES / 16e9  # one pass of a worker over parameters and center: docs/benchmarks/host.md
USABLE = 0.956  # of the rate of Ethernet
CODECS = {"none": (1.0, 0.0), "int4": (0.53 / 4, 0.14)}  # r, and k n in seconds: docs/slow_links.md
LINKS = {"10 Gbit/s": (1e10, 3e-5), "1 Gbit/s": (1e9, 3e-5), "100 Mbit/s, 20 ms": (1e8, 0.01)}  # bit/s, seconds
RATES = np.geomspace(1e6, 1e11, 501)  # bit/s
GAIN = 1.05  # smaller ones are within the errors of most rows


def methods(hosts: int, quick: bool) -> list[Method]:
    """Return the rows of the table for so many hosts; the first of each rule and period is their reference."""
    found = []
    for every in PERIODS[:1] if quick or hosts > 2 else PERIODS:
        quarter, half, last = every // 4, every // 2, every - 1
        if quick:
            delayed = [(quarter, None)]
        elif hosts == 2:
            delayed = [(delay, keep) for delay in (1, quarter, half, last) for keep in (0.0, 0.5, None)]
            delayed.append((3 * every // 4, None))
        else:
            delayed = [(quarter, 0.5), *((delay, None) for delay in (quarter, half, last))]
        for rule in RULES:
            found += [Method(rule, every), *(Method(rule, every, *each) for each in delayed)]
            found += [Method(rule, every, 0, 0.0, FRAGMENTS)]
            found += [Method(rule, every, delay, keep, FRAGMENTS) for delay, keep in delayed if delay == quarter]
        if hosts > 2:
            found += [Method(rule, every, group=group) for rule in SLOW for group in (0, 2)]
        else:
            found += [Method("AveragedEASGD", every, delay) for delay in (quarter, last)]
            found += [Method("AveragedEASGD, scale=None", every, quarter)] if every == PERIODS[0] else []
    return found


def train(method: Method, hosts: int, seeds: list[int], steps: int, curve_every: int = 0) -> tuple[np.ndarray, list]:
    """Return the losses, of shape (seeds, models, 2), and the training losses at each so many steps."""
    workers = Workers(seeds, hosts)
    run, curve = hosts_of(method, workers.x, seeds), []
    if isinstance(run, Elastic):
        run.share_moments(workers.moments)
    for step in range(1, steps + 1):
        workers.step()
        run.after(step)
        if curve_every and step % curve_every == 0:
            curve.append(workers.losses(run.models())[:, 0, 0])
    run.finish(steps)
    return workers.losses(run.models()), curve


def worth(losses: np.ndarray, curve: np.ndarray, every: int, steps: int) -> np.ndarray:
    """Return for each seed how many steps of the curve reach a loss, over the steps that were made.

    The curve has the losses each so many steps, of shape (points, seeds). A loss below all of them counts as the last.
    """
    falling = np.log(np.minimum.accumulate(curve))[::-1]
    at = every * np.arange(len(curve), 0, -1)
    return np.array([np.interp(np.log(loss), falling[:, i], at) for i, loss in enumerate(losses)]) / steps


def mean_error(values: np.ndarray) -> dict[str, float]:
    """Return a mean and its standard error."""
    return {"mean": float(values.mean()), "error": float(values.std(ddof=1) / math.sqrt(len(values)))}


def round_s(hosts: int, part: float, codec: str, rate: float, delay_s: float) -> float:
    """Return t = a + 5 d + c n + k n + (H - 1) r n / B, for a part of the parameters."""
    r, packing_s = CODECS[codec]
    link_s = (hosts - 1) * r * SIZE_BYTES / (rate / 8 * USABLE)
    return BASE_S + 5 * delay_s + part * (ROUND_S + packing_s + link_s)


def share(method: Method, hosts: int, codec: str, rate: float, delay_s: float) -> float | None:
    """Return the part of the time that is left for training; None if exchanges come later than was simulated."""
    if method.rule in ELASTIC:
        r, packing_s = CODECS[codec]
        link_s = (hosts - 1) * r * SIZE_BYTES / (rate / 8 * USABLE)
        late = BASE_S + delay_s + packing_s + max(ROUND_S, link_s) > method.delay * STEP_S
        return None if late else STEP_S / (STEP_S + 3 * MEMORY_S)  # parameters and two moments, at each step
    if method.rule in SLOW:
        sent = 2 if method.group and method.rule != "mean" else 1  # slow weights and progress
        return (
            method.every * STEP_S / (method.every * STEP_S + round_s(method.group or hosts, sent, codec, rate, delay_s))
        )
    part = 1 / method.fragments
    taken = round_s(hosts, part, codec, rate, delay_s)
    if method.delay:
        taken = 2 * part * MEMORY_S + max(0.0, taken - method.delay * STEP_S)
    return method.every * STEP_S / (method.every * STEP_S + method.fragments * taken)


def pays(row: dict[str, Any], reference: dict[str, Any], codec: str) -> list[float] | None:
    """Return the slowest and the fastest rate, bit/s, at which a method is 5 % faster than its reference.

    Between hosts it takes 20 ms there and back.
    """
    faster = []
    for rate in RATES:
        found = share(row["method"], row["hosts"], codec, rate, 0.01)
        waiting = share(reference["method"], row["hosts"], codec, rate, 0.01)
        if found and waiting and row["worth"]["mean"] * found >= GAIN * reference["worth"]["mean"] * waiting:
            faster.append(float(rate))
    return [faster[0], faster[-1]] if faster else None


def measured(hosts: int, seeds: list[int], steps: int, reference_steps: int, quick: bool) -> list[dict[str, Any]]:
    """Train by each method, and return its row of the table."""
    common = Method("LocalSGD", PERIODS[0])
    curve = np.array(train(common, hosts, seeds, reference_steps, common.every)[1])
    rows: list[dict[str, Any]] = []
    references: dict[tuple[str, int], tuple[np.ndarray, dict[str, Any]]] = {}
    for method in methods(hosts, quick):
        losses, _ = train(method, hosts, seeds, steps)
        row: dict[str, Any] = {"hosts": hosts, "method": method, "label": method.label}
        rule = method.rule if method.rule not in ELASTIC else "LocalSGD"
        compared, reference = references.setdefault((rule, method.every), (losses, row))
        for column, name in enumerate(("training", "validation")):
            row[name] = {"loss": float(losses[:, 0, column].mean())}
            row[name]["over"] = mean_error(losses[:, 0, column] / compared[:, 0, column] - 1)
        if method.group:
            row["worst_over"] = mean_error(losses[:, 1:, 0].max(1) / compared[:, 0, 0] - 1)
        row["worth"] = mean_error(worth(losses[:, 0, 0], curve, common.every, steps))
        row["share"] = {
            f"{link}, {codec}": share(method, hosts, codec, *LINKS[link]) for link in LINKS for codec in CODECS
        }
        row["speed"] = {
            name: None if each is None else each * row["worth"]["mean"] for name, each in row["share"].items()
        }
        row["pays"] = {codec: pays(row, reference, codec) for codec in CODECS} if row is not reference else None
        rows.append(row)
        print(words(row), flush=True)
    return rows


def words(row: dict[str, Any]) -> str:
    """Return a line on a method."""
    over = ", ".join(
        f"{row[name]['over']['mean']:+.1%} (+- {row[name]['over']['error']:.1%})" for name in ("training", "validation")
    )
    speeds = " ".join("   -" if each is None else f"{each:.2f}" for each in row["speed"].values())
    method: Method = row["method"]
    rule = f"{row['hosts']} hosts, {method.rule} each {method.every}, {row['label']}"
    return f"{rule:60} over: {over}; worth {row['worth']['mean']:.2f} (+- {row['worth']['error']:.2f}); {speeds}"


def main(quick: bool, out: Path) -> None:
    """Train by each method with each seed; print a line for each and save them."""
    seeds = list(range(1, 3 if quick else SEEDS + 1))
    steps = (100, 200) if quick else (STEPS, REFERENCE_STEPS)
    print("speeds: " + "; ".join(f"{link}, {codec}" for link in LINKS for codec in CODECS))
    rows = [row for hosts in (2, 4) for row in measured(hosts, seeds, *steps, quick)]
    if not quick:
        results = [{**row.pop("method")._asdict(), **row} for row in rows]
        report.save("hosts_overlap_simulation", {"seeds": len(seeds), "steps": STEPS, "results": results}, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, 100 steps, few methods; nothing is saved")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the results  [docs/benchmarks]")
    main(**vars(parser.parse_args()))
