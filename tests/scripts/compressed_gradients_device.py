"""Compressed all-reduces of a device's tensors, bit by bit those of the codecs on the host."""

import os

import numpy as np
import torch
from compressed_by_hand import CompressedByHand

from platoon_base import connect
from platoon_base.compression.codecs import codec_of
from platoon_base.worker import ErrorFeedback

worker = connect()
rank, size = worker.global_rank, worker.global_size
workers = [int(word) for word in os.environ["WORKERS"].split(",")]
codec = codec_of(os.environ["CODEC"])
assert worker.advanced.stays_on_device(torch.empty(0, device="cuda"))
assert worker.advanced.compresses(torch.empty(0, device="cuda"))


def draw(seed, count):
    random = np.random.default_rng(seed)
    return [
        (random.standard_normal(count) * np.exp(3 * random.standard_normal(count))).astype("f4") for _ in range(size)
    ]


for count, op in [(20_011, "mean"), (3_000_000, "sum"), (20_011, "mean")]:
    expected, feedback = CompressedByHand(workers, codec), ErrorFeedback()
    for step in range(3):
        arrays = draw([count, step], count)
        tensor = torch.from_numpy(arrays[rank]).cuda()
        stream = torch.cuda.Stream() if step == 1 else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        result, source = torch.empty_like(tensor), tensor.clone()
        with torch.cuda.stream(stream):
            worker.all_reduce(tensor, op, dest=tensor, feedback=feedback)
        worker.all_reduce(source, op, dest=result, feedback=feedback)  # in the same memory, on another stream
        stream.synchronize()
        want = expected.all_reduce(arrays, op)
        np.testing.assert_array_equal(tensor.cpu().numpy().view("u4"), want.view("u4"))
        np.testing.assert_array_equal(result.cpu().numpy().view("u4"), expected.all_reduce(arrays, op).view("u4"))

for dtype in (torch.float64, torch.float16, torch.int32):  # these travel as they are
    tensor = torch.arange(40_000, device="cuda").remainder(50).to(dtype)
    worker.all_reduce(tensor, "sum", dest=tensor, feedback=ErrorFeedback())
    assert (tensor == (torch.arange(40_000, device="cuda").remainder(50) * size).to(dtype)).all()
print("[1]", flush=True)
worker.barrier("end")
