"""Images for the zoo: random ones, scikit-learn's digits, or Fashion-MNIST, in the size that a network takes.

They lie in memory as bytes, in their own size. A batch is enlarged and converted to float32 as it is loaded, as images
from files would be, so that loading is a part of each step.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

__all__ = ["DATA", "Images", "load"]

DATA = ("synthetic", "digits", "fashion")
INSTALLED = "usr/share/datasets/fashion-mnist"
CACHE = Path(__file__).parents[2] / ".cache" / "data" / INSTALLED  # where `make data` puts them
SYNTHETIC_CLASSES = 1000


class Images:
    """Images of bytes, given out as float32 from 0 to 1, in three channels and another size.

    Parameters
    ----------
    stored : ndarray, shape (images, height, width) or (images, height, width, 3), uint8
    size : int
        Height and width of what `__getitem__` returns; each pixel is the nearest one that is stored.
    channels_first : bool
        Whether an image is (3, size, size), as in Lasagne, and not (size, size, 3).
    """

    dtype = np.dtype("float32")

    def __init__(self, stored: np.ndarray, size: int, channels_first: bool) -> None:
        stored = stored if stored.ndim == 4 else stored[..., np.newaxis]
        self._stored = np.ascontiguousarray(stored.transpose(0, 3, 1, 2)) if channels_first else stored
        self._plane = (2, 3) if channels_first else (1, 2)
        self._nearest = [np.arange(size) * self._stored.shape[axis] // size for axis in self._plane]
        self.shape = (len(stored), *((3, size, size) if channels_first else (size, size, 3)))

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, rows: np.ndarray | int) -> np.ndarray:
        found = self._stored[np.atleast_1d(rows)]
        for axis, pixels in zip(self._plane, self._nearest):
            if len(pixels) != found.shape[axis]:
                found = found.take(pixels, axis)
        images = np.empty((len(found), *self.shape[1:]), np.float32)
        np.multiply(found, np.float32(1 / 255), out=images)  # a grey image gets three equal channels
        return images if np.ndim(rows) else images[0]


def load(name: str, size: int, rows: int, channels_first: bool) -> tuple[Images, np.ndarray, int]:
    """Return images, their labels (int32) and the number of classes; the same ones on every worker.

    Parameters
    ----------
    name : {"synthetic", "digits", "fashion"}
        Random pixels with random labels of 1000 classes; 1,797 digits of 8 x 8 pixels; Fashion-MNIST, 60,000 images of
        28 x 28.
    size : int
        Height and width of the images that are returned.
    rows : int
        The least number of images; data that have fewer are repeated.
    channels_first : bool
        See `Images`.
    """
    if name == "synthetic":
        random = np.random.RandomState(0)
        stored = random.randint(0, 256, (rows, size, size, 3), np.uint8)
        labels, classes = random.randint(0, SYNTHETIC_CLASSES, rows), SYNTHETIC_CLASSES
    elif name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        stored, labels, classes = (digits.images * (255 / 16)).astype(np.uint8), digits.target, 10
    else:
        stored, labels, classes = read_fashion("train-images-idx3"), read_fashion("train-labels-idx1"), 10
    if len(stored) < rows:
        again = np.arange(rows) % len(stored)
        stored, labels = stored[again], labels[again]
    return Images(stored, size, channels_first), labels.astype(np.int32), classes


def read_fashion(name: str) -> np.ndarray:
    """Return one of the files of Fashion-MNIST as an array of bytes: images or labels."""
    folders = [os.environ["FASHION_MNIST"]] if "FASHION_MNIST" in os.environ else [CACHE, f"/{INSTALLED}"]
    for folder in folders:
        path = Path(folder, f"{name}-ubyte.gz")
        if path.exists():
            content = gzip.decompress(path.read_bytes())
            sizes = np.frombuffer(content, ">u4", count=content[3], offset=4)  # byte 3 is the number of axes
            return np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)
    raise SystemExit(
        f"no {name}-ubyte.gz in {' or '.join(map(str, folders))}: run `make data`, or set FASHION_MNIST to the folder "
        "with the four files, or take --data digits"
    )
