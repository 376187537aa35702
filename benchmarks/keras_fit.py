"""What this package costs a fit of Keras. Run it once for each back end:

    KERAS_BACKEND=torch python benchmarks/keras_fit.py [--quick]

--measure chooses what is measured:

fit       Callbacks and averaged gradients of two workers on the CPU, a thread each, in turn with plain fits of the same
          processes. A step is the median over tens of batches, each with one synchronization; what is more is the
          median over pairs of fits made one behind the other. Such fits differ by several percent even if alike ("plain
          again"), so the goals are judged within one epoch: every other block of batches runs without our hooks, and is
          compared with its neighbours. "bare" is the all-reduce of one array again and again, which the processor's
          cache may hold; "cold" is that of the model's arrays, which it does not hold.
large     Two workers and a model of --megabytes, a job for each way: memory beside what the process had before `fit`,
          in units of the weights, and seconds at the ends of epochs. Needs 12 times the model's memory.
alone     The only worker of a job over plain python, on --device. Both processes measure in turn, a fit each; rounds
          alternate between an order and its reverse, and two of them give one ratio, the geometric mean. Medians with
          standard errors (bootstrap). From steps and epochs' ends follows an epoch of 469 mini-batches.
ddp       On --gpus GPUs, torch: averaged gradients over NCCL, in buckets of 25 MB, by way of the host, and torch's
          DistributedDataParallel, in turn in one job. With --hosts the GPUs are divided among network namespaces, which
          need root; --loopback starts the launchers side by side. --rate limits the links.
parallel  On two GPUs, JAX: a job of two workers and one process with keras.distribution.DataParallel, in turn.
center    On --gpus GPUs: EASGD every ten batches, with the center in their memory and on the host, two jobs in turn,
          over fits that never synchronize and plain ones of the same processes.
shared    Synchronizations of ResNet-50 (102 MB) by two workers that share one GPU, by rule and place of the center.
"""

import contextlib
import os
from importlib import metadata

import harness
import numpy as np

SCRIPT = harness.ROOT / "benchmarks" / "scripts" / "keras_fits.py"
median = harness.median
LARGE = ("plain", "epoch ends", "EASGD", "defaults", "averaged gradients")
DDP = ("alone", "averaged gradients", "in buckets of 25 MB", "by way of the host", "DDP")
MODELS = ("10 MB", "100 MB", "ResNet-50")
CENTERS = ("device", "host")
# Rules that wait have their center on the host.
SHARED = [("CenterMomentum", "device"), ("EASGD", "device"), ("CenterMomentum", "host"), ("EASGD", "host")]
SHARED += [("DiLoCo", "host")]
EPOCH = 469  # mini-batches


def backend():
    """Return the back end to measure: of KERAS_BACKEND, or the one that this Keras has most likely."""
    return os.environ.get("KERAS_BACKEND") or ("theano" if metadata.version("keras").startswith("2.") else "torch")


def on_cpu():
    return {**harness.ONE_THREAD, "KERAS_BACKEND": backend(), "CUDA_VISIBLE_DEVICES": ""}


def title_of(first):
    return f"Keras {first['keras']} on {first['backend']}"


def save(name, found, rows, options, **more):
    about = {key: value for key, value in vars(options).items() if key != "out"}
    about |= {name: found[name] for name in ("keras", "backend")}
    harness.save(name, {"options": about, "results": rows, **more}, options)


def fit(options):
    quick = {"rounds": 2, "skipped": 5, "batches": 10, "small_times": 2, "blocks": 2}
    usual = {"rounds": 6, "skipped": 40, "batches": 40, "small_times": 4, "blocks": 40}
    workers = harness.job(SCRIPT, {"measure": "fit", **(quick if options.quick else usual)}, env=on_cpu())
    rows = []
    for model, first in workers[0]["models"].items():
        of = [worker["models"][model] for worker in workers]
        for way in first["step_s"]:
            pairs = [pair for each in of for pair in each["step_s"][way]]
            ends = [pair for each in of for pair in each["between_epochs_s"][way]]
            row = {"model": model, "way": way, "pairs": len(pairs), "parameters": first["parameters"]}
            row |= {"plain step, ms": 1e3 * median(plain[0] for _, plain in pairs)}
            row |= {"step, ms": 1e3 * median(took[0] for took, _ in pairs), **more(pairs, "")}
            row["epoch's end, ms"] = 1e3 * median(took[0] - plain[0] for took, plain in ends)
            if way in first["blocks_s"]:
                blocks = [pair for each in of for pair in each["blocks_s"][way]["pairs"]]
                row |= more(blocks, "in blocks ")
                row["in hooks, us"] = 1e6 * median(each["blocks_s"][way]["in_hooks"] for each in of)
            if way == "EASGD":  # every 10 batches
                row["sync, ms"] = 10e-3 * (row["more, us"] - rows[-1]["more, us"])
            if way == "averaged gradients":
                for kind, name in (("bare", "all_reduce_s"), ("cold", "cold_all_reduce_s")):
                    row[f"{kind}, ms"] = 1e3 * median(each[name] for each in of)
                    row[f"more / {kind}"] = row["more, us"] / 1e3 / row[f"{kind}, ms"]
            rows.append(row)
    harness.table(f"{title_of(workers[0])}, 2 workers; medians", rows, 250)
    of = {row["way"]: row for row in rows if row["model"] == "10 MB"}
    name = "in blocks more, %"
    harness.goal("callbacks alone, 10 MB of weights, % of a step", of["callbacks"][name], 1, at_least=False)
    harness.goal("EASGD every 10 batches, 10 MB, % of a step", of["EASGD"][name], 3, at_least=False)
    text = "averaged gradients, 10 MB: what a step takes more, over the bare all-reduce"
    harness.goal(text, of["averaged gradients"]["more / bare"], 2, at_least=False)
    save(f"keras-{backend()}", workers[0], rows, options)


def more(pairs, name):
    row = {}
    for i, clock in enumerate(("more", "more CPU")):
        row[f"{name}{clock}, %"] = median(100 * (took[i] / plain[i] - 1) for took, plain in pairs)
        row[f"{name}{clock}, us"] = 1e6 * median(took[i] - plain[i] for took, plain in pairs)
    return row


def large(options):
    rows = []
    for way in options.ways or LARGE:
        values = {"measure": "large", "megabytes": options.megabytes, "way": way}
        workers = harness.job(SCRIPT, values, env=on_cpu())
        row = {"way": way, "MB": workers[0]["megabytes"]}
        row["step, s"] = median(s for w in workers for s in w["step_s"][1:])
        row["epoch's end, s"] = median(s for w in workers for s in w["end_s"][:-1])
        row["end of fit, s"] = median(w["end_s"][-1] for w in workers)
        for name in ("step", "end"):
            row[f"memory at {name}s, models"] = max(w[f"{name}_mb"] - w["before_mb"] for w in workers) / row["MB"]
        rows.append(row)
    harness.table(f"{title_of(workers[0])}, 2 workers", rows)
    save(f"keras-large-{backend()}", workers[0], rows, options)


def error_of(values):
    """Return the median over both orders of the values of rounds in turn, and its standard error by the bootstrap."""
    both = np.sqrt(np.array(values[0::2]) * np.array(values[1::2]))
    drawn = np.random.default_rng(0).choice(both, (2000, len(both)))
    return float(np.median(both)), float(np.median(drawn, axis=1).std())


def alone(options):
    rounds, cuda = 4 if options.quick else options.rounds or 50, options.device == "cuda"
    if rounds < 4 or rounds % 2:
        raise SystemExit(f"got --rounds {rounds}: two rounds in opposite orders give one ratio; give 4, 6 or more")
    values = {"measure": "alone", "rounds": rounds, "batches": 50, "skipped": 40}
    values |= {"batches": 3, "skipped": 1} if options.quick else {}
    where = {"devices": ["cuda0" if cuda else "cpu"], "env": {} if cuda else {"CUDA_VISIBLE_DEVICES": ""}}
    jobs = {}
    for role in ("plain", "launched"):
        jobs[role] = {"values": {**values, "role": role}, "launched": role == "launched", **where}
    found = harness.in_turns(SCRIPT, jobs, 2 * (rounds + 1), 2)
    found = {role: answers[0] for role, answers in found.items()}

    def epoch_s(took, clock):
        return (EPOCH - 1) * took["step_s"][clock] + took["end_s"][clock]

    rows = []
    for model, plain in ((model, of["plain"]) for model, of in found["plain"]["times"].items()):
        for way, took in found["launched"]["times"][model].items():
            pairs = list(zip(plain, took))
            row = {"model": model, "way": way, "pairs": len(pairs)}
            row |= {"plain step, ms": 1e3 * median(its["step_s"][0] for its in plain)}
            row |= {"step, ms": 1e3 * median(ours["step_s"][0] for ours in took)}
            row |= {"end +, ms": 1e3 * median(ours["end_s"][0] - its["end_s"][0] for its, ours in pairs)}
            for clock, name in enumerate(("of plain's speed", "plain's CPU time / ours")):
                row[name], row[f"+- {name}"] = error_of([epoch_s(a, clock) / epoch_s(b, clock) for a, b in pairs])
            rows.append(row)
    harness.table(f"{title_of(found['plain'])}, {options.device}: the only worker, and plain", rows, 200)
    for row in rows:
        speed, error = row["of plain's speed"], row["+- of plain's speed"]
        text = f"{row['way']}, {row['model']}, of the plain fit's speed +- {error:.2g}"
        harness.goal(text, speed, 0.99)
    save(f"keras-alone-{backend()}-{options.device}", found["plain"], rows, options, processes=found)


def ddp(options):
    import namespaces

    each = options.hosts
    if options.gpus % each:
        raise SystemExit(f"got --gpus {options.gpus} --hosts {each}: give each host as many GPUs")
    if each > 1 and not options.loopback and namespaces.problem():
        raise SystemExit(f"{namespaces.problem()}; --loopback does without")
    values = {"measure": "ddp", "rounds": options.rounds or (2 if options.quick else 7)}
    values |= {"batches": options.batches or (20 if options.quick else 80), "ways": options.ways or DDP}
    values["models"] = options.models
    how = {"devices": [f"cuda{i}" for i in range(options.gpus)], "env": {"KERAS_BACKEND": "torch"}}
    with contextlib.ExitStack() as stack:
        if each > 1:
            how |= {"words": ["--hosts-compression", options.compression], "hosts": [None] * each}
            how["env"]["NCCL_SOCKET_IFNAME"] = "lo" if options.loopback else "eth0"
            if not options.loopback:
                network = stack.enter_context(namespaces.Hosts(each))
                network.limit(options.rate)
                how["hosts"] = network.all
        workers = harness.job(SCRIPT, values, **how)
    rows = []
    for model, first in workers[0]["models"].items():
        rounds = [found for worker in workers for found in worker["models"][model]["rounds"]]
        for way in first["rounds"][0]:
            row = {"model": model, "way": way, "step, ms": median(found[way] for found in rounds)}
            row |= {f"x {base}": median(found[way] / found[base] for found in rounds) for base in ("alone", "DDP")}
            rows.append(row)
    harness.table(f"{title_of(workers[0])}, {len(workers)} GPUs on {each} hosts; medians", rows)
    for row in rows:
        if row["way"] == "averaged gradients":
            harness.goal(f"averaged gradients, {row['model']}, x DDP", row["x DDP"], 1.05, at_least=False)
    link = f"-{options.rate}-{options.compression}" if options.rate else ""
    name = f"keras-gpu-{each}-hosts{link}" if each > 1 else f"keras-gpu-{options.gpus}"
    save(name, workers[0], rows, options, workers=workers)


def parallel(options):
    rounds, batches = (2, 50) if options.quick else (5, 100)
    values, env = {"measure": "parallel", "rounds": rounds, "batches": batches}, {"KERAS_BACKEND": "jax"}
    jobs = {"workers": {"devices": ["cuda0", "cuda1"]}, "parallel": {"devices": ["cuda0"], "launched": False}}
    for role, how in jobs.items():
        how |= {"values": {**values, "role": role}, "env": env}
    found = harness.in_turns(SCRIPT, jobs, rounds + 1)
    rows = []
    for model, of in found["parallel"][0]["step_s"].items():
        ((name, reference),) = of.items()
        ways = {way: [worker["step_s"][model][way] for worker in found["workers"]]
                for way in found["workers"][0]["step_s"][model]}  # fmt: skip
        for way, taken in [*ways.items(), (name, [reference])]:
            row = {"model": model, "way": way, "step, ms": 1e3 * median(s for each in taken for s in each)}
            pairs = [pair for each, its in zip(taken, ways["alone"]) for pair in zip(each, its)]
            row["x alone"] = median(a / b for a, b in pairs)
            rows.append({**row, f"x {name}": median(a / b for each in taken for a, b in zip(each, reference))})
    harness.table(f"{title_of(found['workers'][0])}, 2 GPUs; medians", rows)
    for row in rows:
        if row["way"] == "averaged gradients":
            harness.goal(f"averaged gradients, {row['model']}, x {name}", row[f"x {name}"], 1.1, at_least=False)
    save("keras-gpu-jax", found["workers"][0], rows, options, **found)


def center(options):
    rounds, batches = (3, 100) if options.quick else (8, 200)
    values = {"measure": "center", "rounds": rounds, "batches": batches}
    how = {"values": values, "devices": [f"cuda{i}" for i in range(options.gpus)]}
    jobs = {place: {**how, "words": ["--center", place]} for place in options.centers}
    found = harness.in_turns(SCRIPT, jobs, rounds + 1)
    rows = []
    for model in next(iter(found.values()))[0]["step_s"]:
        for place, workers in found.items():
            of = [worker["step_s"][model] for worker in workers]
            steps = {way: [took for each in of for took in each[way]] for way in of[0]}
            row = {"model": model, "center": place, "fits": len(steps["EASGD"])}
            row |= {f"{way} ms": 1e3 * median(mean for mean, _ in took) for way, took in steps.items()}
            for base in ("never", "plain"):
                for i, tens in enumerate(("", ", tens")):
                    pairs = zip(steps["EASGD"], steps[base])
                    row[f"over {base}{tens}, %"] = median(100 * (ours[i] / its[i] - 1) for ours, its in pairs)
            rows.append(row)
    first = found[options.centers[0]][0]
    harness.table(f"{title_of(first)}, {options.gpus} GPUs: a step, and EASGD every 10 batches", rows, 200)
    for row in rows:
        if row["center"] == "device":
            harness.goal(f"EASGD every 10, {row['model']}, % over never", row["over never, %"], 2, at_least=False)
    save(f"keras-gpu-center-{backend()}-{options.gpus}", first, rows, options, workers=found)


def shared(options):
    calls = {}
    for rule, place in SHARED:
        if options.ways is None or rule in options.ways:
            values, words = {"measure": "shared", "rule": rule}, ["--center", place]
            how = {"devices": ["cuda0", "cuda0"], "words": words, "limit_s": 120}
            calls[rule, place] = lambda v=values, h=how: harness.job(SCRIPT, v, **h)
    rows = []
    for (rule, place), found in harness.interleaved(calls, options.rounds or 3).items():
        workers = [worker for job in found for worker in job]
        row = {"rule": rule, "center": place, "ms": 1e3 * median(s for w in workers for s in w["sync_s"])}
        copies = [worker["copies_s"] for worker in workers if worker["copies_s"]]
        row["copies ms"] = 1e3 * median(copies) if copies else None
        rows.append({**row, "times the copies": row["ms"] / row["copies ms"] if copies else None})
    title = f"{title_of(workers[0])}, 2 workers on one GPU, {workers[0]['megabytes']:.0f} MB"
    harness.table(title, rows)
    for row in rows:
        if row["center"] == "host":
            harness.goal(f"{row['rule']}, center on the host, ms", row["ms"], 120, at_least=False)
    save(f"keras-gpu-shared-{backend()}", workers[0], rows, options)


MEASURES = {each.__name__: each for each in (fit, large, alone, ddp, parallel, center, shared)}


def measure():
    numbers = {"megabytes": 1024, "rounds": int, "batches": int, "gpus": 2, "hosts": 1}
    links = {"loopback": False, "rate": None, "compression": "none"}
    options = harness.options(
        __doc__, measure="fit", device="cpu", ways=[], models=list(MODELS), centers=list(CENTERS),
        **numbers, **links,
    )  # fmt: skip
    options.ways = options.ways or None
    MEASURES[options.measure](options)


if __name__ == "__main__":
    harness.main(measure)
