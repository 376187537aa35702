"""Keras on torch by DistributedDataParallel, to compare averaged gradients with; and one of the zoo's networks so.

Started by zoo.py like zoo_keras.py, with its arguments and the zoo on the path. Each worker takes all mini-batches.
"""

import os
import tempfile

import keras
import torch
import torch.distributed


class Wrapped(keras.Model):
    """A model whose forward pass goes through DistributedDataParallel; else the train_step of Keras on torch."""

    def train_step(self, data):
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


def in_ddp(model, options=None):
    """Return a compiled model of the same layers and loss; with options in a process group of all workers."""
    cuda = torch.cuda.is_available()
    if options:
        from platoon_base import connect

        options.rule, worker = "ddp", connect()
        store = worker.gather(os.path.join(tempfile.gettempdir(), f"zoo-ddp-{os.getpid()}"), name="store")[0]
        how = {"rank": worker.global_rank, "world_size": worker.global_size, "init_method": f"file://{store}"}
        torch.distributed.init_process_group("nccl" if cuda else "gloo", **how)
    wrapped = Wrapped(model.input, model.output)
    wrapped.compile(model.optimizer, model.loss)
    devices = [torch.cuda.current_device()] if cuda else None
    wrapped.wrapped = (torch.nn.parallel.DistributedDataParallel(wrapped, device_ids=devices),)
    return wrapped


if __name__ == "__main__":
    import zoo_keras
    from keras_models import MODELS
    from zoo_measure import parser

    zoo_keras.main(parser(__doc__, MODELS, image=224).parse_args(), in_ddp, divided=False)
    torch.distributed.destroy_process_group()
