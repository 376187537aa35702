"""HDF5 models of Keras 2 on Theano: ``platoon export`` writes them for Keras 3, which then predicts the same."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from keras_here import KERAS_2, keras, needs_keras_3, on_torch

h5py = pytest.importorskip("h5py")
from platoon_base.errors import ConfigurationError
from platoon_plugins.registrations.keras_hdf5 import convert

pytestmark = pytest.mark.keras
MODELS = Path(__file__).parents[1] / "corpus" / "theano_hdf5"  # by tests/scripts/keras2_theano_models.py
NAMES = sorted(path.stem for path in MODELS.glob("*.h5"))
KERAS_3_NAMES = [pytest.param(name, marks=[on_torch(pytest.mark.promise)] if name == "films" else []) for name in NAMES]


def largest_difference(model, name):
    inputs, *expected = np.load(MODELS / f"{name}.npz").values()
    outputs = model.predict(inputs, verbose=0)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    assert [each.shape for each in outputs] == [each.shape for each in expected]
    return max(np.abs(np.asarray(ours) - theirs).max() for ours, theirs in zip(outputs, expected))


@pytest.mark.skipif(not KERAS_2, reason="needs Keras 2 on Theano: run it in .venv (make test)")
@pytest.mark.parametrize("name", NAMES)
def test_the_values_to_compare_with_are_those_of_keras_2(name):
    assert largest_difference(keras.models.load_model(MODELS / f"{name}.h5"), name) < 1e-5


@needs_keras_3
@pytest.mark.parametrize("name", KERAS_3_NAMES)
def test_keras_3_predicts_what_keras_2_did(platoon, tmp_path, name):
    done = platoon("export", MODELS / f"{name}.h5", "new.h5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without its optimizer; converted: " in done.stdout
    model = keras.models.load_model(tmp_path / "new.h5")
    assert largest_difference(model, name) < 1e-5
    model.compile("adam", "mse")
    inputs, *outputs = np.load(MODELS / f"{name}.npz").values()
    assert np.isfinite(model.evaluate(inputs, outputs if len(outputs) > 1 else outputs[0], verbose=0)).all()


@needs_keras_3
def test_a_file_of_weights_for_a_model_made_anew_is_converted_too(tmp_path):
    convert(MODELS / "volumes.h5", tmp_path / "new.h5")
    entry = keras.Input((5, 6, 7, 2))
    model = keras.Model(entry, [keras.layers.Conv3D(3, 3)(entry), keras.layers.Conv3DTranspose(3, 2)(entry)])
    model.load_weights(MODELS / "volumes.h5")
    assert largest_difference(model, "volumes") > 0.1  # as it is, without an exception
    model.load_weights(tmp_path / "new.h5")
    assert largest_difference(model, "volumes") < 1e-5


def change(path, **values):
    """Change attributes of a file, or of the first layer of its model."""
    with h5py.File(path, "r+") as file:
        model = json.loads(file.attrs["model_config"])
        for name, value in values.items():
            if name in file.attrs:
                del file.attrs[name]
                if value is not None:
                    file.attrs[name] = value
            else:
                model["config"]["layers"][1]["config"][name] = value
        if "model_config" in file.attrs:
            file.attrs["model_config"] = json.dumps(model).encode()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"backend": b"tensorflow"}, "was saved by Keras 2.3.1 on tensorflow"),
        ({"model_config": None}, "has only weights"),
        ({"padding": "same", "strides": [2, 2, 2]}, "conv3d_1: padding='same' with an even size, or with strides"),
        ({"padding": "same", "kernel_size": [2, 2, 2]}, "conv3d_1: padding='same' with an even size, or with strides"),
        ({"recurrent_activation": "x", "activation": "hard_sigmoid"}, None),
        ({"interpolation": "bilinear"}, "conv3d_1: interpolation='bilinear'"),
    ],
)
def test_what_no_weights_would_make_equal_is_refused(tmp_path, values, complaint):
    source, target = tmp_path / "old.h5", tmp_path / "new.h5"
    shutil.copy(MODELS / "volumes.h5", source)
    change(source, **values)
    if complaint is None:
        assert convert(source, target) == ["conv3d_1", "conv3d_transpose_1"]
        return
    with pytest.raises(ConfigurationError, match=complaint.replace("(", r"\(")):
        convert(source, target)
    assert not target.exists()
