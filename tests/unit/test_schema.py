"""Declared memory: parts do not overlap, memory of another declaration is refused, C has the same offsets."""

import itertools
import os

import numpy as np
import pytest

from platoon_base.collectives import host_exchange
from platoon_base.errors import LayoutMismatchError
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.shm.schema import PAGE, Part, Schema
from platoon_base.shm.segments import Segment, abandoned

pytestmark = pytest.mark.base

FIELDS = [("rows", "u4"), ("count", "u8")]
LAYOUT = Layout.of([np.zeros((2, 3)), np.zeros(5, "float32")])


def parts(header, layout):
    yield Part("flags", "u1", (int(header["rows"]),))
    yield Part("values", layout, (), PAGE)
    yield Part("states", layout, (2,))


def schema(magic=b"PLTNTEST", version=3, fields=FIELDS, parts=parts):
    return Schema("a test", magic, version, fields, parts)


def test_parts_keep_what_is_written_and_are_aligned():
    declared = schema()
    memory = bytearray(declared.place(LAYOUT, rows=3).nbytes)
    views = declared.write(memory, LAYOUT, rows=3)
    arrays = [views.flags, *itertools.chain(views.values, *views.states)]
    for number, array in enumerate(arrays, 1):
        array[...] = number
    views.header["count"] = 2**40
    found = declared.read(memory, LAYOUT, rows=3)
    again = [found.flags, *itertools.chain(found.values, *found.states)]
    assert [array.shape for array in again] == [(3,), (2, 3), (5,), (2, 3), (5,), (2, 3), (5,)]
    assert [set(array.ravel().tolist()) for array in again] == [{number} for number in range(1, 8)]
    assert found.header["count"] == 2**40
    assert (found.at["values"], found.at["flags"] % 64, found.at["states"] % 64) == (PAGE, 0, 0)


REFUSED = {
    "another kind": (lambda memory: schema(b"PLTNMORE").read(memory, LAYOUT), "something else"),
    "too short": (lambda memory: schema().read(memory[:20], LAYOUT), "something else"),
    "another version": (lambda memory: schema(version=4).read(memory, LAYOUT), "it has version 3, this process 4"),
    "another value": (lambda memory: schema().read(memory, LAYOUT, rows=4), "its rows is 3, of this process 4"),
    "another model": (lambda memory: schema().read(memory, Layout.of([np.zeros(11)])), "its parts differ"),
    "a changed field": (
        lambda memory: schema(fields=[*FIELDS[:1], ("count", "u4")]).read(memory, LAYOUT),
        "its parts differ",
    ),
    "another part": (
        lambda memory: schema(parts=lambda *given: [*parts(*given)][:2]).read(memory, LAYOUT),
        "its parts differ",
    ),
    "a shorter part": (lambda memory: schema().read(memory[:-PAGE], LAYOUT), "its parts differ"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_memory_of_another_declaration_is_refused(what):
    memory = bytearray(schema().place(LAYOUT, rows=3).nbytes)
    schema().write(memory, LAYOUT, rows=3)
    read, why = REFUSED[what]
    with pytest.raises(LayoutMismatchError, match=f"is not a test .*{why}.*run the same script"):
        read(memory)


def test_a_segment_is_closed_where_it_is_refused():
    name = f"{segment_prefix()}test{os.getpid()}-schema"
    made = schema().create(name, LAYOUT, rows=3)
    made.flags[:] = 7
    found = schema().attach(name, LAYOUT)
    assert found.flags.tolist() == [7, 7, 7]
    found.segment.close()
    with pytest.raises(LayoutMismatchError):
        schema(version=4).attach(name, LAYOUT)
    made.segment.close()
    assert abandoned(name)
    Segment.unlink(name)


@pytest.mark.skipif(not host_exchange.HAVE_FUSED, reason="without the C extension there is nothing to agree with")
def test_the_c_extension_has_the_same_offsets():
    fields = {("board", name): offset for name, (_, offset) in host_exchange.BOARD.fields.items()}
    fields |= {("line", name): offset for name, (_, offset) in host_exchange.LINE.fields.items()}
    assert {(of, name): 64 * (of == "board") + offset for (of, name), offset in fields.items()} == {
        tuple(key.split(".")): at for key, at in host_exchange.OFFSETS.items() if key.startswith(("board.", "line."))
    }
    words = {key: at for key, at in host_exchange.OFFSETS.items() if key.startswith("state.")}
    assert words == {f"state.{name}": 8 * index for index, name in enumerate(host_exchange.STATE)}
    assert host_exchange.OFFSETS["line"] == host_exchange.LINE.itemsize
    assert host_exchange.OFFSETS["state"] <= 8 * 40
    group = host_exchange.GroupSegment.create(f"{segment_prefix()}test{os.getpid()}-offsets", (0, 1), 4096)
    assert group.memory.at["board"] == 64
    group.close()
    group.unlink()
