import os
from platoon_base import compat

compat.apply()
compat.apply()
import h5py
import keras
import numpy as np
from keras.engine.saving import load_attributes_from_hdf5_group
from keras.layers import Dense

compat.apply()
model = keras.Sequential([Dense(5, activation="tanh", input_shape=(3,)), Dense(2, activation="softmax")])
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
rng = np.random.RandomState(0)
x, y = rng.randn(40, 3), np.eye(2)[rng.randint(0, 2, 40)]
model.fit(x, y, batch_size=10, epochs=2, verbose=0)
path = os.environ["MODEL"]
model.save(path)
loaded = keras.models.load_model(path)
np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
state = model.optimizer.get_weights()
assert state[0] == 8 and len(state) > 8 and all(np.any(moment) for moment in state[1:9])
for ours, theirs in zip(state, loaded.optimizer.get_weights(), strict=True):
    np.testing.assert_array_equal(theirs, ours)
for either in model, loaded:
    either.fit(x, y, batch_size=10, epochs=1, verbose=0, shuffle=False)
for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
    np.testing.assert_array_equal(theirs, ours)
model.save_weights(path)
before = model.get_weights()
model.set_weights([weight + 1 for weight in before])
model.load_weights(path)
for ours, theirs in zip(before, model.get_weights(), strict=True):
    np.testing.assert_array_equal(theirs, ours)
with h5py.File(path, "w") as file:
    file.attrs.create("names", ["a", "ä"], dtype=h5py.string_dtype())
    file.attrs.create("table", [["a", "b"], ["c", "d"]], dtype=h5py.string_dtype())
    file.attrs["numbers"] = [1.0, 2.0]
    file.attrs["nothing"] = h5py.Empty("f")
    assert load_attributes_from_hdf5_group(file, "names") == ["a", "ä"]
    assert file.attrs["table"].shape == (2, 2) and file.attrs["table"][1, 0].decode("utf8") == "c"
    assert file.attrs["numbers"].tolist() == [1.0, 2.0] and file.attrs["nothing"] == h5py.Empty("f")
    assert file.attrs.get("missing") is None
