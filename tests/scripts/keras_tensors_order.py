from keras_preamble import *
from platoon_base.torch_loops import EarlyAverages
from platoon_base.torch_loops.flats import Bucket

order = []
Early = EarlyAverages
arrived, take = Early.arrived, Early.take


def note_arrival(early, index, weight):
    order.append(index)
    arrived(early, index, weight)


def note_the_end(early, gradients):
    begun = take(early, gradients)
    order.append("end")
    return begun


Early.arrived, Early.take = note_arrival, note_the_end
fill = Bucket.fill


def note_call(bucket, gradients, header=None):
    order.append("call")
    fill(bucket, gradients, header)


def steps():  # each with the calls behind the backward pass of the one before
    text = " ".join(map(str, order))
    order.clear()
    return [step.split() for step in text.split("end")]


def train(model, rows=8, **options):
    x, y = data(rows, seed=rank)
    Bucket.fill = note_call
    try:
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=distribute(**options))
    finally:
        Bucket.fill = fill
