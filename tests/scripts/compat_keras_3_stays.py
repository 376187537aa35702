import os
from platoon_base import compat

compat.apply()
import h5py
import keras
import numpy as np

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("adam", "mse")
x = np.ones((8, 3), "float32")
model.fit(x, x[:, :2], batch_size=4, verbose=0)
path = os.environ["MODEL"]
model.save(path)
loaded = keras.models.load_model(path)
np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
for ours, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
    np.testing.assert_array_equal(theirs.numpy(), ours.numpy())
with h5py.File(path, "w") as file:
    file.attrs["name"] = "text"
    assert type(file.attrs["name"]) is str
