"""Shared data with one worker, and files that are mapped into memory."""

import gc
from pathlib import Path

import numpy as np
import pytest

from platoon_base.data import SharedData
from platoon_base.errors import ConfigurationError, RowIndexError

pytestmark = pytest.mark.base

MAPS = Path("/proc/self/maps")
ROWS = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)


@pytest.fixture
def nothing_left_behind():
    """A job of one has nothing to leave."""


def test_the_rows_are_a_copy_that_cannot_be_written_to(solo_worker):
    source = ROWS.copy()
    data = SharedData(source, worker=solo_worker)
    source[:] = 0
    np.testing.assert_array_equal(data.array, ROWS)
    assert (data.shape, data.dtype, data.ndim, len(data), data.made_here) == ((9, 4), np.float32, 2, 9, True)
    np.testing.assert_array_equal(np.asarray(data), ROWS)
    np.testing.assert_array_equal(data[2:4], ROWS[2:4])
    np.testing.assert_array_equal(data.excerpt([3, -1]), ROWS[[3, -1]])
    np.testing.assert_array_equal(data.excerpt_part([3, 1]), ROWS[[3, 1]])
    with pytest.raises(ValueError, match="read-only"):
        data.array[0] = 1
    with pytest.raises(RowIndexError, match="got index 9 at position 0"):
        data.excerpt([9])


def test_resizing_keeps_the_rows_and_writing_changes_them(solo_worker):
    data = SharedData.empty((2, 3), "i4", "counts", worker=solo_worker)
    before = data.array
    with data.writing() as rows:
        rows[:] = [[1], [2]]
    data.resize(4)
    assert data[:, 0].tolist() == [1, 2, 0, 0]
    data.resize(1)
    data.resize(2)
    assert data[:, 0].tolist() == [1, 0]
    assert before[:, 0].tolist() == [1, 2]
    with pytest.raises(ConfigurationError, match="got rows=-1"):
        data.resize(-1)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (np.float32(3), r"got data of shape \(\)"),
        (np.array([None]), "dtype object"),
        (np.zeros(2, [("a", "f4")]), "each field of a structured array separately"),
        ("text", r"got data of shape \(\)"),
        (np.ma.zeros((3, 2)), "got a MaskedArray as shared data"),
    ],
    ids=range(5),
)
def test_what_has_no_rows_of_numbers_is_refused(solo_worker, data, why):
    with pytest.raises(ConfigurationError, match=why):
        SharedData(data, worker=solo_worker)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "é", ".x", "x" * 65])
def test_names_are_parts_of_file_names(solo_worker, name):
    with pytest.raises(ConfigurationError, match="which becomes part of a file name"):
        SharedData(ROWS, name, worker=solo_worker)


def test_after_close_nothing_can_be_read(solo_worker):
    with SharedData(ROWS, worker=solo_worker) as data:
        kept = data.array
    for use in (lambda: data.array, lambda: data.excerpt([0]), lambda: data.resize(3)):
        with pytest.raises(ConfigurationError, match="closed"):
            use()
    data.close()
    np.testing.assert_array_equal(kept, ROWS)


def test_numpy_files_are_mapped(tmp_path, solo_worker):
    np.save(tmp_path / "x.npy", ROWS)
    data = SharedData.open(tmp_path / "x.npy", worker=solo_worker)
    assert str(tmp_path / "x.npy") in MAPS.read_text()
    np.testing.assert_array_equal(data.excerpt([8, 0]), ROWS[[8, 0]])
    with pytest.raises(ValueError, match="read-only"):
        data.array[0] = 1
    with pytest.raises(ConfigurationError, match="x.npy cannot be resized: copy them with"):
        data.resize(3)
    with pytest.raises(ConfigurationError, match="cannot be written to"):
        data.writing()
    data.close()
    gc.collect()
    assert str(tmp_path / "x.npy") not in MAPS.read_text()


def test_numpy_files_that_cannot_be_mapped(tmp_path, solo_worker):
    np.savez(tmp_path / "x.npz", ROWS)
    np.save(tmp_path / "f.npy", np.asfortranarray(ROWS))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    np.save(tmp_path / "objects.npy", np.array([None]))
    for name, why in (
        ("x.npz", "an archive"), ("f.npy", "Fortran"), ("cut.npy", "cannot be mapped"), ("none.npy", "No such file"),
        ("objects.npy", "cannot be mapped"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=why):
            SharedData.open(tmp_path / name, worker=solo_worker)


def test_hdf5_files_are_mapped_where_they_are_contiguous(tmp_path, solo_worker):
    h5py = pytest.importorskip("h5py", reason="needs h5py: `make test` runs this in .venv")
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["plain"] = ROWS
        file["group/big"] = ROWS.astype(">f8")
        file.create_dataset("packed", data=ROWS, compression="gzip")
        file.create_dataset("nothing", (0, 4))
        file.create_dataset("text", data=["a", "bc"], dtype=h5py.string_dtype())
    plain = SharedData.open(path, "plain", worker=solo_worker)
    np.testing.assert_array_equal(plain.excerpt([7, 7]), ROWS[[7, 7]])
    assert "x.hdf5" in MAPS.read_text()
    big = SharedData.open(path, "group/big", worker=solo_worker)
    np.testing.assert_array_equal(big.excerpt(slice(None)), ROWS.astype("f8"))
    for dataset, why in (
        ("packed", "chunked"),
        ("nothing", "empty"),
        ("other", "no readable data set 'other'"),
        ("group", "no readable data"),
        ("text", "dtype object"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            SharedData.open(path, dataset, worker=solo_worker)
    with pytest.raises(ConfigurationError, match="none.hdf5"):
        SharedData.open(tmp_path / "none.hdf5", "plain", worker=solo_worker)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(SharedData(file["packed"], worker=solo_worker)[:], ROWS)
    del big, plain
    gc.collect()
