"""`prepare` on several workers: equal to one process with averaged gradients, and what it refuses."""

import pytest
from keras_here import KERAS_2, on_keras_3
from programs import run_python
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@on_keras_3(pytest.mark.promise)
def test_a_prepared_fit_equals_one_process(run_keras):
    """Splits, validation_steps, weights of rows and of classes, a loop: weights and history, to 1e-4."""
    run_keras(script_path("keras_prepared_equals_one_process")).require_success()


def test_what_is_refused_says_what_to_do(run_keras):
    outcome = run_keras(script_path("keras_prepared_what_is_refused_says_what_to_do")).require_success()
    if not KERAS_2:
        assert "got a fit without distribute(...)" in outcome.logs[0]


def test_under_plain_python_fit_is_that_of_keras(tmp_path):
    """Bit by bit, with the generators as the script has left them."""
    code = (
        "import sys\n"
        "import numpy as np\n"
        "if sys.argv[1] == 'prepared':\n"
        "    from platoon_plugins.keras import prepare, rank, world_size, is_main\n"
        "    assert (rank(), world_size(), is_main()) == (0, 1, True)\n"
        "else:\n"
        "    import platoon_plugins.keras\n"  # Keras 2 needs it
        "    prepare = lambda model: model\n"
        "import keras, random\n"
        "random.seed(1), np.random.seed(1)\n"
        "if hasattr(keras, 'ops'): keras.utils.set_random_seed(1)\n"
        "layers = [keras.layers.Dense(4, input_shape=(3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]\n"
        "model = prepare(keras.Sequential(layers))\n"
        "model.compile('adam', 'mse')\n"
        "x = np.random.rand(50, 3)\n"
        "h = model.fit(x, x.sum(1), epochs=2, verbose=0, validation_split=0.2)\n"
        "print([w.tobytes().hex() for w in model.get_weights()], h.history, np.random.rand())\n"
    )
    plain, prepared = (run_python("-c", code, how).stdout for how in ("plain", "prepared"))
    assert plain == prepared


def test_a_seed_of_the_script_stays_until_a_number_is_drawn():
    """`seed_alike` of the import of `prepare`; NumPy's generator shows whether it was seeded by a number."""
    code = (
        "import numpy as np\n"
        "from platoon_plugins.keras import seeds\n"
        "def drawn_after(prepare):\n"
        "    prepare()\n"
        "    seeds.seed_alike(5)\n"
        "    return np.random.rand()\n"
        "common = drawn_after(lambda: None)\n"
        "assert common == drawn_after(lambda: None)\n"
        "for seed in (0, 1, 812, 2**32 - 1):\n"
        "    np.random.seed(seed)\n"
        "    own = np.random.rand()\n"
        "    assert drawn_after(lambda: np.random.seed(seed)) == own != common\n"
        "    assert drawn_after(lambda: (np.random.seed(seed), np.random.rand())) == common\n"
    )
    run_python("-c", code)
