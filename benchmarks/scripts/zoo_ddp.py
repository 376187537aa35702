"""Train one of the zoo's networks in Keras on torch by DistributedDataParallel: what zoo.py compares averages with.

Started like zoo_keras.py, with its arguments; the folder of the zoo is on the path. Each worker takes all mini-batches.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import keras
import torch
import torch.distributed
import zoo_keras
from keras_models import MODELS
from zoo_measure import parser

from platoon_base import connect


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


def wrapped(model: keras.Model, options: argparse.Namespace) -> keras.Model:
    """Return the model, wrapped, in a process group of all workers."""
    options.rule = "ddp"
    worker = connect()
    cuda = torch.cuda.is_available()
    store = worker.gather(os.path.join(tempfile.gettempdir(), f"zoo-ddp-{os.getpid()}"), name="store")[0]
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{store}",
        rank=worker.global_rank,
        world_size=worker.global_size,
    )
    trained = Wrapped(model.inputs, model.outputs)
    trained.compile(model.optimizer, model.loss)
    devices = [torch.cuda.current_device()] if cuda else None
    trained.wrapped = (torch.nn.parallel.DistributedDataParallel(trained, device_ids=devices),)
    return trained


if __name__ == "__main__":
    zoo_keras.main(parser(__doc__, MODELS, image=224).parse_args(), wrapped, divided=False)
    torch.distributed.destroy_process_group()
