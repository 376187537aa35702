"""On macOS and Windows a script runs as one process: nothing that only Linux has is imported for it."""

import os
from pathlib import Path

import pytest
from programs import run_python

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture
def nothing_left_behind():
    """Nothing here starts what could stay behind."""


def run_elsewhere(code, **environment):
    path = os.pathsep.join([str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = f"import other_system\nother_system.pretend()\n{code}"
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    return run_python("-W", "ignore", "-c", started, env=variables, timeout=400).stdout.splitlines()


@pytest.mark.base
def test_what_is_hidden_is_not_there():
    """Else the other tests here would show nothing."""
    code = """
import importlib, os
for name in ("posix_ipc", "fcntl"):
    try:
        importlib.import_module(name)
    except ImportError as exc:
        print(exc.name)
print(hasattr(os, "fork"))
"""
    assert run_elsewhere(code) == ["posix_ipc", "fcntl", "False"]


@pytest.mark.base
def test_a_plain_loop_is_a_job_of_one():
    code = """
import numpy as np
from platoon_base import EASGD, connect
worker = connect()
parameters = [np.ones(3, np.float32)]
worker.init_shared_params(parameters, EASGD())
worker.sync_params()
worker.report({"loss": 1.0})
print(worker.global_size, worker.all_reduce(np.arange(3.0)).tolist(), worker.gather(2.0), parameters[0].tolist())
worker.close()
"""
    assert run_elsewhere(code) == ["1 [0.0, 1.0, 2.0] [2.0] [1.0, 1.0, 1.0]"]


@pytest.mark.base
def test_a_function_of_a_notebook_is_called_here():
    code = """
import sys, warnings
sys.platform = "darwin"
from platoon_base import connect, notebook_launcher
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(notebook_launcher(lambda x: x + connect().global_size, (41,), num_processes=2))
print(caught[0].message)
"""
    told = "jobs run only on Linux, and this is darwin: calling the function once, in this process"
    assert run_elsewhere(code) == ["42", told]


needs_keras_3 = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND", "theano") == "theano", reason="needs Keras 3: make test-keras"
)


@pytest.mark.keras
@needs_keras_3
def test_the_adapter_of_keras_can_be_imported():
    code = "import platoon_plugins.keras as face; print(all(hasattr(face, name) for name in face.__all__))"
    assert run_elsewhere(code) == ["True"]


@pytest.mark.keras
@pytest.mark.slow
@needs_keras_3
def test_a_fit_of_keras_is_that_of_one_process():
    """The same script as under `platoon launch`, with a validation and an averaged optimizer."""
    code = """
import sys
import numpy as np
import platoon_plugins.keras as platoon
import keras
keras.utils.set_random_seed(0)
x = np.random.RandomState(0).rand(64, 4).astype("float32")
y = (x.sum(axis=1) > 2).astype("int32")
def fit(with_us):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(platoon.DistributedOptimizer(optimizer) if with_us == "average" else optimizer, loss)
    data, more = (x, y), []
    if with_us:
        data = platoon.shard(x, y)
        more = platoon.distribute([], rule=platoon.EASGD() if with_us == "rule" else "auto")
    return model.fit(*data, epochs=2, batch_size=16, validation_data=(x, y), shuffle=False, verbose=0,
                     callbacks=more).history["val_loss"]
plain = fit("")
for how in ("rule", "average"):
    print(np.allclose(fit(how), plain, rtol=1e-5))
"""
    assert run_elsewhere(code) == ["True", "True"]


@pytest.mark.base
def test_the_command_says_why_it_starts_no_job():
    code = "import sys; sys.platform = 'darwin'; from platoon_base.cli import main; main(['launch', '-n', '2', 'x.py'])"
    done = run_python("-c", code, status=2)
    assert "platoon: jobs run only on Linux, and this is darwin" in done.stderr
    assert "python SCRIPT" in done.stderr
