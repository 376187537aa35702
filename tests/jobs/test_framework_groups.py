"""A framework's own collectives in a launched job, by the environment that the launcher sets."""

import json

import pytest
from scripts_here import script_path

pytest.importorskip("jax", reason="needs JAX: `make test` runs this file in .nox/keras3")
keras = pytest.importorskip("keras", reason="needs Keras 3: `make test` runs this file in .nox/keras3")

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="about JAX: run it with KERAS_BACKEND=jax"),
]

# The gradient of a mean over all rows of a linear model is known by hand.
SCRIPT = script_path("framework_groups_script")


@pytest.mark.slow
def test_keras_distribution_trains_over_the_workers_of_a_job(platoon):
    done = platoon("launch", "-n", "2", "--tee", "all", SCRIPT).require()
    for rank in range(2):
        assert f"rank {rank} equals one process" in done.stdout
    assert "platoon cannot see what a framework averages by itself" in done.stderr


def test_what_the_user_has_set_stays(platoon, write_script):
    script = write_script(
        "import json, os\n"
        "print(json.dumps({name: value for name, value in os.environ.items() if 'DISTRIBUTION' in name}))"
    )
    own = {"KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.1:1234", "KERAS_DISTRIBUTION_NUM_PROCESSES": "7"}
    done = platoon("launch", "-n", "2", script, environment=own)
    found = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert found == own
