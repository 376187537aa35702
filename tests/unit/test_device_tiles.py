"""How a center is dealt out to devices, and the directory in shared memory: against plain counting."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupting import at_each_instruction

from platoon_base.centers.device_directory import (
    ALIGNMENT,
    FINAL,
    LOCK_BYTES,
    NO_OWNER,
    TILE_BYTES,
    DeviceDirectory,
    Tiling,
    split_element_code,
    tile_table,
)
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.shm.segments import Segment

pytestmark = pytest.mark.base

SHAPES = [(100_000,), (), (0,), (3, 5), (TILE_BYTES // 4,), (TILE_BYTES // 4 + 1,)]


def layout_of(shapes, dtype="float32"):
    return Layout(tuple(ParameterSpec(f"p{i}", shape, dtype) for i, shape in enumerate(shapes)))


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.sampled_from([*SHAPES, (40_000,), (17, 19)]), min_size=1, max_size=8),
    partitions=st.integers(1, 5),
    dtype=st.sampled_from(["float32", "float64"]),
    center_states=st.integers(0, 2),
)
def test_every_element_lies_once_in_one_partition(shapes, partitions, dtype, center_states):
    """And as often as there are center states, each at the same distance behind the one before."""
    tiling, itemsize = Tiling(layout_of(shapes, dtype), partitions, center_states), np.dtype(dtype).itemsize
    covered = [np.zeros(int(np.prod(shape)), int) for shape in shapes]
    taken = [np.zeros(size, int) for size in tiling.partition_bytes]
    state = np.zeros(tiling.state_bytes, int)
    for tile in tiling.tiles:
        nbytes = tile.size * itemsize
        assert 0 < nbytes <= TILE_BYTES
        assert tile.offset % ALIGNMENT == tile.state % ALIGNMENT == 0
        assert tile.offset >= tiling.values_start[tile.partition]
        assert tile.lock + LOCK_BYTES <= tiling.values_start[tile.partition]
        covered[tile.parameter][tile.start : tile.start + tile.size] += 1
        for buffer in range(1 + center_states):
            start = tile.offset + buffer * tiling.buffer_bytes[tile.partition]
            assert start % ALIGNMENT == 0
            assert start + nbytes <= tiling.partition_bytes[tile.partition]
            taken[tile.partition][start : start + nbytes] += 1
        taken[tile.partition][tile.lock : tile.lock + LOCK_BYTES] += 1
        state[tile.state : tile.state + nbytes] += 1
    assert all((c == 1).all() for c in covered)
    assert all((t <= 1).all() for t in taken)
    assert (state <= 1).all()


def test_a_kernel_is_told_the_number_that_a_parameter_has_in_the_layout():
    """Each launch gets parameters of one dtype, 400 at most: its own count of them names the wrong ones."""
    specs = [("float64", "float32")[i % 2] for i in range(900)]
    layout = Layout(tuple(ParameterSpec(str(i), (3 + i,), dtype) for i, dtype in enumerate(specs)))
    tiling = Tiling(layout, 3)
    parameters = [i for i, dtype in enumerate(specs) if dtype == "float32"][400:]
    rows = tile_table(tiling, parameters, {0: 1 << 20, 1: 1 << 30, 2: 1 << 40}, [1 << 50])
    assert rows.shape == (len(parameters), 5)
    for row in rows.tolist():
        index, size = row[1] & 0xFFFFFFFF, row[1] >> 32
        parameter = parameters[index]
        assert split_element_code(row[0]) == (parameter, 0)
        assert split_element_code(row[0] + 2) == (parameter, 2)  # as the kernel tells of its element 2
        assert size == 3 + parameter


@pytest.mark.parametrize("center_states", [0, 2])
@pytest.mark.parametrize("own_states", [0, 2])
def test_a_kernel_is_told_where_a_tile_of_a_large_parameter_begins(center_states, own_states):
    elements = 3 * TILE_BYTES // 4 + 5
    tiling = Tiling(layout_of([(7,), (elements,)]), 2, center_states)
    partition_at, states_at = {0: 1 << 20, 1: 1 << 30}, [1 << 50, 1 << 51][:own_states]
    rows = tile_table(tiling, [1], partition_at, states_at).tolist()
    tiles = [tile for tile in tiling.tiles if tile.parameter == 1]
    assert [split_element_code(row[0]) for row in rows] == [(1, tile.start) for tile in tiles]
    for row, t in zip(rows, tiles):
        start, step = partition_at[t.partition], tiling.buffer_bytes[t.partition]
        assert row[2] == start + t.lock
        assert row[3 : 4 + center_states] == [start + t.offset + step * i for i in range(1 + center_states)]
        assert row[4 + center_states :] == [at + t.state for at in states_at]
    assert sum(row[1] >> 32 for row in rows) == elements


ORDERS = [tuple(reversed(range(len(shape)))) for shape in SHAPES]  # as Fortran has them


@pytest.fixture
def directories():
    """Two handles of one directory, as the worker that makes it and one that opens it have them."""
    name = f"{segment_prefix()}test{os.getpid()}-center"
    first = DeviceDirectory.create(name, layout_of(SHAPES), 3, 2, ORDERS)
    second = DeviceDirectory.attach(name, layout_of(SHAPES))
    yield first, second
    first.close()
    second.close()
    Segment.unlink(name)


def test_values_and_center_states_come_back_through_the_mirror(directories):
    first, second = directories
    rng = np.random.default_rng(0)
    buffers = [[np.asarray(rng.standard_normal(shape), "float32") for shape in SHAPES] for _ in range(3)]
    for number, values in enumerate(buffers):
        first.write_buffer(number, values)
    assert second.tiling.center_states == 2
    for number, values in enumerate(buffers):
        found = [np.empty(shape, "float32") for shape in SHAPES]
        second.read_buffer(number, found)
        assert all(np.array_equal(a, b) for a, b in zip(values, found))
        # Each partition's part of the mirror is its memory behind the locks.
        state = second.buffer_as_state(number)
        for tile in first.tiling.tiles:
            expected = values[tile.parameter].reshape(-1, order="F")[tile.start : tile.start + tile.size]
            start = tile.offset - first.tiling.values_start[tile.partition]
            start += number * first.tiling.buffer_bytes[tile.partition]
            part = second.mirror(tile.partition)[start : start + 4 * tile.size].view("float32")
            assert np.array_equal(part, expected)
            # A worker's own state that starts with these has the same at the tile's own place.
            assert np.array_equal(state[tile.state : tile.state + 4 * tile.size].view("float32"), expected)


def test_owners_are_published_one_after_the_other(directories):
    first, second = directories
    assert not second.complete
    for partition in range(3):
        first.publish(partition, owner=partition, handle=bytes([partition]) * 64)
    assert second.complete
    before = second.version
    second.publish(1, owner=2, handle=b"x" * 64, incarnation=5)
    assert first.version != before
    assert first.entry(1) == (2, 2, b"x" * 64, 5)
    assert first.entry(0) == (1, 0, bytes(64), 0)


def test_a_reader_between_the_writes_of_an_owner_takes_no_torn_entry(directories):
    """Read after every single instruction of the writer, as another process may."""
    writer, reader = directories
    owners = {(1, 5, b"a" * 64, 1), (2, 7, b"b" * 64, 3)}
    writer.publish(1, 5, b"a" * 64, 1)
    seen = set()

    at_each_instruction(lambda: writer.publish(1, 7, b"b" * 64, 3), lambda: seen.add(reader.entry(1)))
    assert {entry for entry in seen if entry.owner != NO_OWNER} == owners
    assert reader.entry(1) == (2, 7, b"b" * 64, 3)


def test_an_entry_whose_writer_died_is_nobodys_until_the_next_owner_writes_it(directories):
    class Died(BaseException):
        pass

    def die():
        if reader.entry(1).owner == NO_OWNER:
            raise Died

    writer, reader = directories
    writer.publish(1, 5, b"a" * 64)
    with pytest.raises(Died):
        at_each_instruction(lambda: writer.publish(1, 7, b"b" * 64), die)
    assert reader.entry(1)[:2] == (1, NO_OWNER)
    reader.publish(1, 6, b"c" * 64)
    assert reader.entry(1) == writer.entry(1) == (2, 6, b"c" * 64, 0)


def test_a_mirror_is_as_new_as_it_was_asked_for(directories):
    owner, requester = directories
    assert requester.has_mirror(requester.want_mirror())  # no partition is made yet: the first values are the center's
    for partition in range(3):
        owner.publish(partition, owner=partition, handle=bytes(64))
    number = requester.want_mirror()
    assert owner.wanted == number
    assert not requester.has_mirror(number)
    for partition in range(3):
        owner.mirrored(partition, number)
    assert requester.has_mirror(number)
    assert not requester.has_mirror(requester.want_mirror())
    for partition in range(3):
        owner.mirrored(partition)  # the owner has left
    assert requester.has_mirror(FINAL)
    owner.publish(1, owner=0, handle=bytes(64))
    assert not requester.has_mirror(number)
