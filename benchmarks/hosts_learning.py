"""How soon workers on two hosts, whose centers couriers bring together, learn what as many on one host learn.

    python benchmarks/hosts_learning.py [--seeds 1 2 3 4 5] [--methods defaults easgd-10] [--out FOLDER]
    python benchmarks/hosts_learning.py --task fashion-mnist --rate 0.001 --epochs 14 --methods defaults --seeds 1 2 3

A perceptron in Lasagne (tasks of learning.py). Launchers on this machine are the hosts. Each mini-batch takes 20 ms
longer than it computes, so four workers need less than two cores, and an exchange each 0.2 s is one in about ten
mini-batches. Steps are those of a worker; accuracies are on all validation rows after each epoch.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import harness

SCRIPT = harness.ROOT / "benchmarks" / "scripts" / "learning_lasagne.py"
TARGETS_OF = {"digits": (0.93, 0.95, 0.96), "fashion-mnist": (0.86, 0.87, 0.88)}
NEVER = 86400.0
# Hosts, workers on each, and the seconds from one exchange between hosts to the next.
ARMS = {
    "1 host x 1": (1, 1, 0.0),
    "1 host x 4": (1, 4, 0.0),
    "2 hosts x 2, every 0.2 s": (2, 2, 0.2),
    "2 hosts x 2, every 1 s": (2, 2, 1.0),
    "2 hosts x 2, never": (2, 2, NEVER),
    "4 hosts x 1, every 0.2 s": (4, 1, 0.2),
    "4 hosts x 1, never": (4, 1, NEVER),
}
GOAL = 1.2  # of the steps that as many workers on one host take


def run(arm, method, seed, options):
    hosts, workers, every_s = ARMS[arm]
    values = {"task": options.task, "method": method, "rate": options.rate, "seed": seed, "slow": None}
    values |= {"epochs": options.epochs, "pause_ms": options.pause_ms}
    env = {**harness.ONE_THREAD, "PLATOON_HOSTS_EVERY_S": str(every_s), **harness.FLOAT32}
    how = {"devices": ["cpu"] * hosts * workers, "hosts": [None] * hosts, "words": ["--seed", seed], "env": env}
    (found,) = harness.job(SCRIPT, values, limit_s=200, **how)
    row = {"method": method, "": arm, "seed": seed, "best": max(value for _, _, value in found["curve"])}
    for target in TARGETS_OF[options.task]:
        row[f"{target}"] = next((step for step, _, value in found["curve"] if value >= target), math.inf)
    print(row, flush=True)
    return row


def measure():
    choices = {"seeds": [1, 2, 3, 4, 5], "methods": ["defaults", "easgd-10"], "arms": (*ARMS,), "task": "digits"}
    options = harness.options(__doc__, rate=0.002, epochs=40, pause_ms=20.0, jobs=2, **choices)
    if options.quick:
        options.seeds, options.arms, options.methods, options.epochs = [1], list(ARMS)[1:3], ["defaults"], 4
    methods = [
        (arm, "plain" if ARMS[arm][:2] == (1, 1) else method) for method in options.methods for arm in options.arms
    ]
    wanted = [(*key, seed) for key in dict.fromkeys(methods) for seed in options.seeds]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda key: run(*key, options), wanted))
    targets, rows, medians = TARGETS_OF[options.task], [], {}
    for arm, method in dict.fromkeys(methods):
        row = {"method": method, "": arm}
        for target in map(str, targets):
            steps = [each[target] for each in runs if (each[""], each["method"]) == (arm, method)]
            medians[arm, method, target] = harness.median(steps)
            row[target] = f"{medians[arm, method, target]:g} ({min(steps):g} to {max(steps):g})"
        rows.append(row)
    harness.table("Steps of a worker to an accuracy; medians (ranges)", rows)
    for method in options.methods:
        one, two = (medians.get((arm, method, str(targets[-1]))) for arm in list(ARMS)[1:3])
        if one and two:
            ratio = two / one if two < math.inf else math.inf
            harness.goal(f"{method}, steps to {targets[-1]} over those of one host", ratio, GOAL, at_least=False)
    about = {name: getattr(options, name) for name in ("task", "rate", "epochs", "pause_ms")}
    name = "hosts_learning" if options.task == "digits" else f"hosts_learning-{options.task}"
    harness.save(name, {**about, "runs": runs}, options)


if __name__ == "__main__":
    harness.main(measure)
