"""Keras on several GPUs, from NumPy arrays: ResNet-50 alone, by DataParallel of Keras (on JAX), and by `prepare`.

Each way is a job of its own, one after the other. "alone at once" is plain Keras on each GPU at the same time, without
any exchange: what the host can feed. The first epoch, which compiles, is reported apart, and the second does not count.

    KERAS_BACKEND=jax python benchmarks/keras_gpus.py [--devices cuda0 cuda1] [--image 160] [--batch 64] [--rows 3072]
    KERAS_BACKEND=torch python benchmarks/keras_gpus.py --policy mixed_bfloat16 --ways alone "one worker"
"""

import os
import time

import harness

WAYS = ("alone", "one worker", "alone at once", "DataParallel", "async", "sync")
PREPARED = ("one worker", "async", "sync")
EPOCHS = 8


def work(given) -> None:
    if given.way in PREPARED:
        from platoon_plugins.keras import prepare, rank
    import keras
    import numpy as np

    if given.way == "DataParallel":
        devices = keras.distribution.list_devices("gpu")
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    keras.mixed_precision.set_dtype_policy(given.policy)
    rng = np.random.default_rng(0)
    x = rng.random((given.rows, given.image, given.image, 3), dtype=np.float32)
    y = rng.integers(0, 1000, given.rows)
    keras.utils.set_random_seed(1)
    model = keras.applications.ResNet50(weights=None, input_shape=x.shape[1:])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    if given.way in PREPARED:
        prepare(model, mode="sync" if given.way == "sync" else "async")
    ends = [time.perf_counter()]

    class Ends(keras.callbacks.Callback):  # A hook for batches would make Keras wait for each.
        def on_epoch_end(self, epoch, logs=None):
            ends.append(time.perf_counter())

    model.fit(x, y, batch_size=given.batch, epochs=given.epochs, verbose=0, callbacks=[Ends()])
    harness.give(rank() if given.way in PREPARED else 0, [end - begin for begin, end in zip(ends, ends[1:])])


def epochs_of(way: str, options, rows: int) -> list[list[float]]:
    """Return the seconds of the epochs of each process."""
    values = {"way": way, "image": options.image, "batch": options.batch, "rows": rows, "policy": options.policy}
    values["epochs"] = 4 if options.quick else EPOCHS
    if way == "DataParallel":  # Its batch is that of all devices.
        values["batch"] *= len(options.devices)
    if way in PREPARED:
        return harness.job(__file__, values, devices=options.devices[: 1 if way == "one worker" else None])
    numbers = [name.removeprefix("cuda") for name in options.devices]
    seen = [numbers[:1]] if way == "alone" else [numbers] if way == "DataParallel" else [[n] for n in numbers]
    envs = [{"CUDA_VISIBLE_DEVICES": ",".join(mine)} for mine in seen]
    jobs = [harness.Job(__file__, values, devices=["cpu"], launched=False, env=env) for env in envs]
    return [times for job in jobs for times in job.wait()]


def measure() -> None:
    data = {"image": 160, "batch": 64, "rows": 3072, "policy": "float32"}
    options = harness.options(__doc__, ways=list(WAYS), devices=["cuda0", "cuda1"], **data)
    rows = []
    for way in options.ways:
        if way == "DataParallel" and os.environ["KERAS_BACKEND"] != "jax":
            continue
        processes = epochs_of(way, options, options.rows)
        share = len(processes) if way in ("async", "sync") else 1
        speeds = [options.rows / share / harness.median(times[2:]) for times in processes]
        rows.append({"way": way, "images/s": sum(speeds), "first epoch, s": max(times[0] for times in processes)})
        rows[-1] |= {"epoch, s": max(harness.median(times[2:]) for times in processes), "epochs": processes}
        for other in {"alone", "alone at once", "DataParallel"} & {row["way"] for row in rows[:-1]}:
            reference = next(row for row in rows if row["way"] == other)
            rows[-1][f"/ {other}"] = rows[-1]["images/s"] / reference["images/s"]
        print({name: value for name, value in rows[-1].items() if name != "epochs"}, flush=True)
        about = {name: getattr(options, name) for name in ("policy", "image", "batch", "rows")}
        name = "-".join(map(str, ("keras-gpus", os.environ["KERAS_BACKEND"], *about.values())))
        harness.save(name, {"options": about, "results": rows}, options)
    harness.table(f"Keras on {os.environ['KERAS_BACKEND']}: ResNet-50, {options.policy}", rows)


if __name__ == "__main__":
    harness.main(measure, work)
