import os
import sys

from keras_preamble import DistributedOptimizer, KERAS_2, data, dense, distribute, keras, rank, shard

import subprocess

x, y = data(64)
path = os.path.join(sys.argv[1], "model" + (".h5" if KERAS_2 else ".keras"))
optimizer = DistributedOptimizer("adam")
assert type(optimizer).__name__ == "Adam"
config = DistributedOptimizer(keras.optimizers.SGD(0.1)).get_config()
assert config["momentum"] == 0.0 and config.get("name") in (None, "distributed_SGD", "distributed_sgd")
model = dense(optimizer=optimizer)
model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
if rank == 0:
    model.save(path)
    code = (
        "import sys; from platoon_base import compat; compat.apply(); sys.modules['platoon_plugins'] = None;"
        "import keras; model = keras.models.load_model(sys.argv[1]);"
        "assert type(model.optimizer).__module__.startswith('keras'), type(model.optimizer).__module__;"
        "import numpy as np; n = model.optimizer.iterations;"
        "n = n.get_value() if hasattr(n, 'get_value') else keras.ops.convert_to_numpy(n);"
        "assert int(n) == 4, n"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=200)
