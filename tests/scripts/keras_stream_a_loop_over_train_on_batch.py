from keras_preamble import DistributedOptimizer, data, dense, everyones, flat, keras, rank

from platoon_plugins.keras import broadcast_variables

keras.utils.set_random_seed(rank)
model = dense(optimizer=DistributedOptimizer("adam"))
broadcast_variables(model)
x, y = data(8, seed=rank)
for _ in range(30):
    model.train_on_batch(x, y)
assert model.optimizer.gradient_average.on_device
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
