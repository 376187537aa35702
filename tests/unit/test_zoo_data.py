"""The images of examples/zoo: made from bytes as they are asked for, the same on all workers."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from platoon_base.fingerprint import fingerprint

ZOO = Path(__file__).parents[2] / "examples" / "zoo"


@pytest.fixture
def zoo_data(monkeypatch):
    monkeypatch.syspath_prepend(str(ZOO))
    import zoo_data

    return zoo_data


def test_images_are_enlarged_to_the_nearest_pixel_and_scaled(zoo_data):
    stored = np.array([[[0, 51], [102, 255]], [[255, 255], [0, 0]]], np.uint8)
    expected = np.array([[0, 0, 0.2, 0.2], [0, 0, 0.2, 0.2], [0.4, 0.4, 1, 1], [0.4, 0.4, 1, 1]], "float32")
    first, last = zoo_data.Images(stored, 4, channels_first=True), zoo_data.Images(stored, 4, channels_first=False)
    assert (first.shape, last.shape) == ((2, 3, 4, 4), (2, 4, 4, 3))
    batch = first[np.array([1, 0])]
    assert (batch.dtype, batch.shape, batch.flags.c_contiguous) == (np.float32, (2, 3, 4, 4), True)
    np.testing.assert_allclose(batch[1], [expected] * 3, rtol=1e-6)
    np.testing.assert_array_equal(last[range(2)], batch[::-1].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(first[0], batch[1])


@pytest.mark.parametrize("name", ["synthetic", "digits"])
def test_data_are_the_same_each_time_and_as_many_as_asked_for(zoo_data, name):
    if name == "digits":
        pytest.importorskip("sklearn", reason="needs scikit-learn: `make setup` installs it")
    images, labels, classes = zoo_data.load(name, 10, 2000, channels_first=True)
    assert images.shape == (2000, 3, 10, 10)
    assert labels.shape == (2000,)
    assert labels.dtype == np.int32
    assert 0 <= labels.min() <= labels.max() < classes
    again = zoo_data.load(name, 10, 2000, channels_first=True)
    assert fingerprint(images, labels) == fingerprint(*again[:2])


def test_fashion_mnist_is_read_from_its_folder_or_its_absence_is_reported(zoo_data, tmp_path, monkeypatch):
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path))
    with pytest.raises(SystemExit, match=r"no train-images-idx3-ubyte.gz in .*: run `make data`, or set FASHION_MNIST"):
        zoo_data.load("fashion", 28, 2, channels_first=True)
    sizes = b"".join(size.to_bytes(4, "big") for size in (2, 28, 28))
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(b"\0\0\x08\x03" + sizes + bytes([0, 255] * (28 * 28)))
    with gzip.open(tmp_path / "train-labels-idx1-ubyte.gz", "wb") as file:
        file.write(b"\0\0\x08\x01" + sizes[:4] + bytes([7, 3]))
    images, labels, classes = zoo_data.load("fashion", 28, 2, channels_first=False)
    assert labels.tolist() == [7, 3]
    assert classes == 10
    assert images[0][0, :4, 0].tolist() == [0, 1, 0, 1]
