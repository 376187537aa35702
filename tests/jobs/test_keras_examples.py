"""The examples in the style of keras.io: plain scripts but for three lines, which train on two workers."""

import os
import re
import sys
from pathlib import Path

import pytest
from needing import needs

FOLDER = Path(__file__).parents[2] / "examples" / "keras_io"
# The lines of each that differ from a script without this package, with what stands there.
PLAIN = {
    "gan.py": {
        "from platoon_plugins.keras import DistributedOptimizer, distribute, shard\n": "",
        "(d_optimizer=DistributedOptimizer(adam(3e-4)), g_optimizer=DistributedOptimizer(adam(3e-4)))": (
            "(d_optimizer=adam(3e-4), g_optimizer=adam(3e-4))"
        ),
        "gan.fit(shard(images), batch_size=batch_size, epochs=epochs, callbacks=distribute(), verbose=2)": (
            "gan.fit(images, batch_size=batch_size, epochs=epochs, verbose=2)"
        ),
    },
    "vae.py": {
        "from platoon_plugins.keras import DistributedOptimizer, distribute, shard\n": "",
        "optimizer=DistributedOptimizer(keras.optimizers.Adam(2e-3))": "optimizer=keras.optimizers.Adam(2e-3)",
        "vae.fit(shard(images), batch_size=batch_size, epochs=epochs, callbacks=distribute(), verbose=2)": (
            "vae.fit(images, batch_size=batch_size, epochs=epochs, verbose=2)"
        ),
    },
    "text_transformer.py": {
        "from platoon_plugins.keras import distribute, shard\n": "",
        "distribute([keras.callbacks.EarlyStopping(patience=3)])": "[keras.callbacks.EarlyStopping(patience=3)]",
        "(*shard(*train), batch_size, epochs, verbose=2, validation_data=shard(*valid), callbacks=callbacks)": (
            "(*train, batch_size, epochs, verbose=2, validation_data=valid, callbacks=callbacks)"
        ),
    },
}
# For a short run.
SMALLER = {
    "gan.py": {"epochs = 30": "epochs = 3", "load_digits().images": "load_digits().images[:512]"},
    "vae.py": {"epochs = 30": "epochs = 3", "load_digits().images": "load_digits().images[:512]"},
    "text_transformer.py": {
        "epochs = 6": "epochs = 3",
        "maxlen = 40": "maxlen = 12",
        "batch_size = 32": "batch_size = 64",
    },
}


def changed(text, lines):
    for before, after in lines.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


@pytest.mark.base
def test_every_example_is_a_plain_script_but_for_three_lines():
    assert {path.name for path in FOLDER.glob("*.py")} == set(PLAIN)
    for name, lines in PLAIN.items():
        plain = changed((FOLDER / name).read_text(), lines)
        code = plain.partition('"""\n\n')[2]
        assert len(lines) == 3
        assert not re.search("platoon|shard|distribute|Distributed", code)
        compile(plain, name, "exec")


@needs("keras", "keras", "needs Keras: `make test` runs this in .nox/keras3")
@pytest.mark.skipif(os.environ.get("KERAS_BACKEND") not in ("torch", "jax"), reason="needs Keras on torch or JAX")
@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLAIN))
def test_an_example_trains_on_two_workers(platoon, write_script, tmp_path, name):
    script = write_script(changed((FOLDER / name).read_text(), SMALLER[name]))
    platoon("launch", "-n", 2, "-D", "cpu", "--log-dir", "logs", script).require()
    found = [
        re.findall(r"^(?:Losses|Mean|Validation).*", (tmp_path / "logs" / f"rank{rank}.log").read_text(), re.MULTILINE)
        for rank in range(2)
    ]
    assert found[0] == found[1] != []  # the values over all data, and what the same weights draw
    numbers = [float(number) for number in re.findall(r"\d+\.\d+", found[0][0])]
    if name == "vae.py":
        assert numbers[1] < numbers[0]
    elif name == "text_transformer.py":
        assert numbers[0] > 0.65
    else:
        assert all(0.1 < loss < 3 for loss in numbers)


GUIDE = FOLDER.parent / "keras_guide" / "data_parallel_processes.py"
# In place of images that Keras would download: each class has a brightness of its own.
IMAGES = """import numpy as np
rng = np.random.default_rng(0)
y_train, y_test = rng.integers(10, size=1024), rng.integers(10, size=256)
x_train, x_test = (np.zeros((len(y), 12, 12)) + 25 * y[:, None, None] for y in (y_train, y_test))
"""


@needs("keras", "keras", "needs Keras: `make test` runs this in .nox/keras3")
@pytest.mark.skipif(os.environ.get("KERAS_BACKEND") not in ("torch", "jax"), reason="needs Keras on torch or JAX")
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_guide_runs_from_its_begin_to_its_end(run_command, write_script, tmp_path):
    pytest.importorskip("cloudpickle", reason="needs cloudpickle: `make test` runs this in .nox/keras3")
    load = "(x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()\n"
    script = write_script(changed(GUIDE.read_text(), {load: IMAGES}))
    done = run_command(sys.executable, script, timeout=480).require()
    values = re.findall(r"^(?:one process|two workers.*): (\d\.\d+)$", done.stdout, re.MULTILINE)
    assert len(values) == 3
    assert (tmp_path / "model.keras").stat().st_size > 0
