"""Batches in page-locked memory, on a CUDA device by PyTorch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from platoon_base.data import BatchReader, BatchServer, load_ahead

pytestmark = [
    pytest.mark.base,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs PyTorch and a CUDA device"),
]

ROWS = 1_000_000


@pytest.fixture
def address(tmp_path):
    torch.zeros(1, device="cuda")  # so that this process computes on CUDA
    return str(tmp_path / "batches")


def test_cuda_sees_the_batches_as_pinned(address):
    with BatchServer(address) as server, BatchReader(address, pin_memory=True) as reader:
        for k in range(10):
            server.send((np.full(ROWS, k, "float32"), np.array([k])))
            x, y = map(torch.from_numpy, reader.receive())
            assert reader.pinned
            assert x.is_pinned()
            assert float(x.to("cuda", non_blocking=True).mean()) == float(y) == k
        server.close()


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "another stream"])
def test_a_batch_is_not_overwritten_while_the_gpu_still_has_to_read_it(address, side):
    """Each copy waits behind long work on the GPU, when the script has dropped the batch and the loader wants room."""
    loader = load_ahead(lambda: (np.full(ROWS, k, "float32") for k in range(12)), pin_memory=True, ahead=3)
    copies, a = [], torch.rand(8192, 8192, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream() if side else torch.cuda.current_stream()):
        for batch in loader:
            for _ in range(4):
                a = a @ a
            copies.append(torch.from_numpy(batch).to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    assert [float(copy.mean()) for copy in copies] == list(range(12))
