"""A model with a train_step of its own, for each back end as its guide has it."""

import keras
import numpy as np

if keras.backend.backend() == "torch":
    import torch

    class CustomModel(keras.Model):
        def train_step(self, data):
            x, y = data
            self.zero_grad()
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
            loss.backward()
            trainable_weights = [v for v in self.trainable_weights]
            gradients = [v.value.grad for v in trainable_weights]
            with torch.no_grad():
                self.optimizer.apply(gradients, trainable_weights)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {m.name: m.result() for m in self.metrics}

elif keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    class CustomModel(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {m.name: m.result() for m in self.metrics}

else:
    import jax

    class CustomModel(keras.Model):
        def compute_loss_and_updates(self, trainable, non_trainable, x, y, training=False):
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=training)
            return self.compute_loss(x, y, y_pred), (y_pred, non_trainable)

        def train_step(self, state, data):
            trainable, non_trainable, optimizer_variables, metrics_variables = state
            x, y = data
            grad_fn = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
            (loss, (y_pred, non_trainable)), grads = grad_fn(trainable, non_trainable, x, y, training=True)
            trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, grads, trainable)
            new_metrics_vars, logs = [], {}
            for metric in self.metrics:
                this_metric_vars = metrics_variables[
                    len(new_metrics_vars) : len(new_metrics_vars) + len(metric.variables)
                ]
                if metric.name == "loss":
                    this_metric_vars = metric.stateless_update_state(this_metric_vars, loss)
                else:
                    this_metric_vars = metric.stateless_update_state(this_metric_vars, y, y_pred)
                logs[metric.name] = metric.stateless_result(this_metric_vars)
                new_metrics_vars += this_metric_vars
            return logs, (trainable, non_trainable, optimizer_variables, new_metrics_vars)


inputs = keras.Input(shape=(32,))
outputs = keras.layers.Dense(1)(inputs)
model = CustomModel(inputs, outputs)
model.compile(optimizer="adam", loss="mse", metrics=["mae"])

x = np.random.random((500, 32))
y = np.random.random((500, 1))
history = model.fit(x, y, epochs=3)
