from keras_preamble import DistributedOptimizer, L, everyones, flat, keras
from keras_tensors_order import order, train

import torch

module = torch.nn.Linear(6, 4)
torch.nn.init.ones_(module.weight), torch.nn.init.zeros_(module.bias)
model = keras.Sequential([keras.Input((6,)), L.TorchModuleWrapper(module), L.Dense(3)])
model.compile(DistributedOptimizer("sgd"), "mse")
module.bias.requires_grad_(False)
train(model, rows=20)
assert set(order) == {"call"} and (module.bias == 0).all() and (module.weight != 1).any()
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
