from keras_preamble import *

kinds = {
    "Muon": {"exclude_layers": ["out"], "weight_decay": 0.01},
    "Lion": {"weight_decay": 0.01, "clipnorm": 0.5},
    "Adafactor": {"relative_step": False},
}
x, y = data(8 * size * 4)
for name, options in kinds.items():
    make = lambda: getattr(keras.optimizers, name)(learning_rate=0.02, **options)
    require_one_process(lambda wrap: dense(optimizer=wrap(make())), x, y, tolerance=2e-5, moved=1e-3)
