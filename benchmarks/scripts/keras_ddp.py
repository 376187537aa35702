"""A model of Keras on torch in DistributedDataParallel, to compare averaged gradients with."""

from __future__ import annotations

import keras
import torch

__all__ = ["in_ddp"]


class Wrapped(keras.Model):
    """A model whose forward pass goes through DistributedDataParallel; else the train_step of Keras on torch."""

    def train_step(self, data):
        """Make one step."""
        x, y = data
        y_pred = self.wrapped[0](x, training=True)
        self.zero_grad()
        loss = self._compute_loss(x=x, y=y, y_pred=y_pred, training=True)
        self._loss_tracker.update_state(loss, sample_weight=x.shape[0])
        loss.backward()
        weights = self.trainable_weights[:]
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return self.compute_metrics(x, y, y_pred)


def in_ddp(model: keras.Model) -> keras.Model:
    """Return a compiled model of the same layers, optimizer and loss, in the default process group."""
    wrapped = Wrapped(model.input, model.output)
    wrapped.compile(model.optimizer, model.loss)
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else None
    wrapped.wrapped = (torch.nn.parallel.DistributedDataParallel(wrapped, device_ids=devices),)
    return wrapped
