import sys


class Refuse:
    def find_spec(self, name, *rest):
        if name == "platoon_plugins" or name.startswith("platoon_plugins."):
            raise ImportError("loading a model must not need this package")


if sys.argv[3] == "2":
    from platoon_base import compat

    compat.apply()
sys.meta_path.insert(0, Refuse())
import keras
import numpy as np

model = keras.models.load_model(sys.argv[1])
expected = np.load(sys.argv[2])
assert abs(model.predict(expected["x"], verbose=0) - expected["y"]).max() < 1e-5
assert type(model.optimizer).__name__ == "SGD"
