"""A framework's own collectives in a launched job, by the environment that the launcher sets."""

import json

import pytest

pytest.importorskip("jax", reason="needs JAX: `make test` runs this file in .nox/keras3")
keras = pytest.importorskip("keras", reason="needs Keras 3: `make test` runs this file in .nox/keras3")

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(300),
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="about JAX: run it with KERAS_BACKEND=jax"),
]

# The gradient of a mean over all rows of a linear model is known by hand.
SCRIPT = """
import json
import jax, keras
import numpy as np

keras.distribution.initialize()
rank = jax.process_index()
assert jax.process_count() == 2 and len(jax.local_devices()) == 1
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
rng = np.random.default_rng(3)
x, y = rng.standard_normal((2, 12, 5)), rng.standard_normal((2, 12, 1))
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(x[rank].astype("f4"), y[rank].astype("f4"), batch_size=4, epochs=1, shuffle=False, verbose=0)
w = np.ones((5, 1))
for k in range(0, 12, 4):
    rows = x[:, k : k + 4].reshape(8, 5)
    w -= 0.1 * 2 * rows.T @ (rows @ w - y[:, k : k + 4].reshape(8, 1)) / 8
np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-5)
print("rank", rank, "equals one process")
"""


@pytest.mark.slow
def test_keras_distribution_trains_over_the_workers_of_a_job(platoon, write_script):
    done = platoon("launch", "-n", "2", "--tee", "all", write_script(SCRIPT))
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"rank {rank} equals one process" in done.stdout
    assert "Nothing is known here of what a framework averages by itself" in done.stderr


def test_what_the_user_has_set_stays(platoon, write_script):
    script = write_script(
        "import json, os\n"
        "print(json.dumps({name: value for name, value in os.environ.items() if 'DISTRIBUTION' in name}))"
    )
    own = {"KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1234", "KERAS_DISTRIBUTION_NUM_PROCESSES": "7"}
    done = platoon("launch", "-n", "2", script, environment=own)
    found = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert found == own
