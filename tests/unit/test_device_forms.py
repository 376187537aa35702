"""The kernels of a center on devices: run on the processor against the rules in NumPy, and compiled for CUDA."""

import ctypes
import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest
from pairwise import pairwise
from rule_table import ON_DEVICES

from platoon_base.centers.device_directory import ALIGNMENT, TILE_BYTES, Tiling, split_element_code, tile_table
from platoon_base.centers.device_source import kernel_source, operations
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.rules import CenterMomentum
from platoon_base.rules.center import Adopt, average_of, form_of, local_sources, momenta

pytestmark = pytest.mark.base

needs_cxx = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler: install g++")
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="no CUDA compiler: nvcc of CUDA's toolkit")

WITHOUT_LOCKS = [rule for rule in ON_DEVICES if rule.form.adds]
SHAPES = [(TILE_BYTES // 4 + 1,), (), (0,), (3, 5), (2 * TILE_BYTES // 8 + 77,), (64,)]

# A device of one thread at a time, in blocks that come one after the other.
PROCESSOR = r"""
#define __global__
struct Index { unsigned x; };
static Index blockIdx, gridDim = {2}, threadIdx = {0}, blockDim = {1};
extern "C" void be_block(unsigned number) { blockIdx.x = number; }
static bool finite_bits(T v) { return __builtin_isfinite(v); }
static T times(T a, T b) { return a * b; }
static T load_shared(const T *p) { return *p; }
static Vec load_shared(const Vec *p) { return *p; }
static void store_shared(T *p, T v) { *p = v; }
static void store_shared(Vec *p, const Vec &v) { *p = v; }
static void add_shared(T *p, T d) { *p += d; }
static void add_shared(Vec *p, const Vec &d) { for (int k = 0; k < VECTOR; k++) p->v[k] += d.v[k]; }
static void lock(unsigned *word, unsigned mine) { if (*word) __builtin_trap(); *word = mine; }
static void unlock(unsigned *word) { if (!*word) __builtin_trap(); *word = 0; }
static void refuse(u64 *refused, u64 flag, u64 element)
{ if (element < *refused) *refused = element; *(unsigned *)flag = 1; }
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Return a function that compiles a kernel of a rule for the processor, once."""
    found, folder = {}, tmp_path_factory.mktemp("kernels")

    def compile_one(rule, name, dtype):
        key = rule.kernel, name, dtype
        if key not in found:
            operation = operations(rule)[name]
            text = kernel_source(name, form_of(rule), operation, np.dtype(dtype), 0, 1, PROCESSOR)
            source = folder / f"{len(found)}.cc"
            source.write_text(text)
            flags = ["-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
            subprocess.run(["g++", *flags, str(source), "-o", f"{source}.so"], check=True, timeout=120)
            library = ctypes.CDLL(f"{source}.so")
            scalar = ctypes.c_float if dtype == "float32" else ctypes.c_double
            u64, pointer = ctypes.c_uint64, ctypes.c_void_p
            types = [pointer, pointer, u64, u64, ctypes.c_uint, pointer, u64, *[scalar] * len(operation.scalars)]
            getattr(library, name).argtypes = types
            found[key] = library
        return found[key]

    return compile_one


def aligned(nbytes):
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


class Memory:
    """A center, its states and one worker's own states, laid out as on devices."""

    def __init__(self, rule, dtype, partitions, rng):
        self.rule, self.dtype = rule, np.dtype(dtype)
        self.layout = Layout(tuple(ParameterSpec(f"p{i}", shape, dtype) for i, shape in enumerate(SHAPES)))
        self.tiling = Tiling(self.layout, partitions, len(rule.center_state))
        self.partitions = [aligned(n) for n in self.tiling.partition_bytes]
        self.states = [aligned(self.tiling.state_bytes) for _ in rule.local_state]
        # The center's values, its states, the worker's own states: whole arrays, and the same in tiles.
        count = 1 + len(rule.center_state) + len(rule.local_state)
        self.begun = [[rng.standard_normal(shape).astype(dtype) for shape in SHAPES] for _ in range(count)]
        for buffer, arrays in enumerate(self.begun):
            for tile, place in self.places(buffer):
                place[:] = arrays[tile.parameter].reshape(-1)[tile.start : tile.start + tile.size]

    def places(self, buffer):
        """Yield each tile with its elements in a buffer."""
        own = buffer - 1 - len(self.rule.center_state)
        for tile in self.tiling.tiles:
            nbytes = tile.size * self.dtype.itemsize
            if own >= 0:
                yield tile, self.states[own][tile.state : tile.state + nbytes].view(self.dtype)
            else:
                start = tile.offset + buffer * self.tiling.buffer_bytes[tile.partition]
                yield tile, self.partitions[tile.partition][start : start + nbytes].view(self.dtype)

    def buffers(self):
        """Return all buffers as whole arrays."""
        found = [[np.full(shape, np.nan, self.dtype) for shape in SHAPES] for _ in self.begun]
        for buffer, arrays in enumerate(found):
            for tile, place in self.places(buffer):
                arrays[tile.parameter].reshape(-1)[tile.start : tile.start + tile.size] = place
        return found

    def run(self, library, name, local, scalars=()):
        """Run a kernel as two blocks; returns the element refused, or None."""
        parameters = [i for i, shape in enumerate(SHAPES) if 0 not in shape]
        at = {i: memory.ctypes.data for i, memory in enumerate(self.partitions)}
        rows = tile_table(self.tiling, parameters, at, [state.ctypes.data for state in self.states])
        bases = np.array([local[i].ctypes.data for i in parameters], np.uint64)
        refused, flag = np.array([2**64 - 1], np.uint64), np.zeros(1, np.uint32)
        for block in (0, 1):
            library.be_block(block)
            getattr(library, name)(
                rows.ctypes.data, bases.ctypes.data, len(rows), 1, 7, refused.ctypes.data, flag.ctypes.data, *scalars
            )
        for partition, start in zip(self.partitions, self.tiling.values_start):
            assert not partition[:start].any(), "a lock was left"
        assert bool(flag[0]) == (int(refused[0]) != 2**64 - 1)
        return split_element_code(int(refused[0])) if flag[0] else None


def worker_values(rng, dtype, shift):
    """Draw values that lie at whole vectors, or one element behind."""
    values = []
    for shape in SHAPES:
        size = int(np.prod(shape))
        array = aligned((size + 1) * np.dtype(dtype).itemsize).view(dtype)[shift : shift + size].reshape(shape)
        array[...] = rng.standard_normal(shape)
        values.append(array)
    return values


def keep_some(local, center):
    """Let a worker have the center's values here and there."""
    for x, c in zip(local, center):
        if x.ndim:
            x[::3] = c[::3]


def by_the_rule(rule, local, buffers):
    """Apply the NumPy form to copies; an element whose center or center state is not finite keeps all its values."""
    shared = 1 + len(rule.center_state)
    first = None
    after = [[a.copy() for a in arrays] for arrays in [local, *buffers]]
    for parameter, old in enumerate(zip(local, *buffers)):
        new = [arrays[parameter] for arrays in after]
        with np.errstate(all="ignore"):
            rule.sync(new[0], new[1], tuple(new[1 + shared :]), tuple(new[2 : 1 + shared]))
        finite = np.isfinite(new[1 : 1 + shared]).all(axis=0)
        if first is None and not finite.all():
            first = parameter, int(np.argmin(finite))
        for arrays, values, value in zip(after, new, old):
            arrays[parameter] = np.where(finite, values, value)
    return after, first


def same_bits(got, want):
    return all(a.tobytes() == b.tobytes() for a, b in zip(got, want))


@needs_cxx
@pairwise(
    "of,alone,dtype,partitions,shift,poison",
    ON_DEVICES, [False, True], ["float32", "float64"], [1, 3], [0, 1], [False, True],
)  # fmt: skip
def test_a_kernel_is_its_rule_bit_by_bit(compiled, of, alone, dtype, partitions, shift, poison):
    rng = np.random.default_rng(partitions)
    memory, rule = Memory(of, dtype, partitions, rng), Adopt(of) if alone else of
    huge = 0.9 * np.finfo(dtype).max
    for turn in range(3):
        local = worker_values(rng, dtype, shift)
        keep_some(local, memory.buffers()[0])
        if poison:
            local[0][[5, TILE_BYTES // 4]] = np.nan, np.inf
            local[4][-1] = (-1) ** turn * huge
            local[4][-2] = -local[4][-1]
            local[3][2, 4] = -np.inf
        expected, first = by_the_rule(rule, local, memory.buffers())
        told = memory.run(compiled(of, rule.kernel, dtype), rule.kernel, local, rule.kernel_args())
        assert told == first
        assert bool(told) == poison
        for got, want in zip([local, *memory.buffers()], expected):
            assert same_bits(got, want)


@needs_cxx
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_element_is_left_out_if_a_center_state_alone_would_not_be_finite(compiled, dtype):
    rule, most = CenterMomentum().resolved(4), np.finfo(dtype).max
    rng = np.random.default_rng(3)
    memory, local = Memory(rule, dtype, 2, rng), worker_values(rng, dtype, 0)
    x, c, m, s, s_x = 0.5, 0.0, 0.2, 0.9, 0.9
    for buffer, share in enumerate([c, m, s, s_x]):
        tile, place = next(memory.places(buffer))
        assert (tile.parameter, tile.start) == (0, 0)
        place[9] = share * most
    local[0][9] = x * most
    before = [[a.copy() for a in arrays] for arrays in [local, *memory.buffers()]]
    expected, first = by_the_rule(rule, local, memory.buffers())
    d = 0.225 * x
    j = 2.7 * (0.9**0.25 * m + (1 - 0.9**0.25) * d)
    assert c + j + d < 1 < s + j  # of the largest number
    assert memory.run(compiled(rule, rule.kernel, dtype), rule.kernel, local, rule.kernel_args()) == first == (0, 9)
    for got, want, old in zip([local, *memory.buffers()], expected, before):
        assert same_bits(got, want)
        assert got[0][9] == old[0][9]


@needs_cxx
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", WITHOUT_LOCKS, ids=str)
def test_without_locks_an_addition_gives_the_same_where_nobody_else_adds(compiled, rule, dtype):
    rng = np.random.default_rng(1)
    memory, local = Memory(rule, dtype, 2, rng), worker_values(rng, dtype, 0)
    local[0][5] = np.nan
    expected, first = by_the_rule(rule, local, memory.buffers())
    name = f"{rule.kernel}_atomic"
    assert memory.run(compiled(rule, name, dtype), name, local, rule.kernel_args()) == first == (0, 5)
    for got, want in zip([local, *memory.buffers()], expected):
        assert same_bits(got, want)


@needs_cxx
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ON_DEVICES, ids=str)
def test_a_worker_takes_the_center_over_and_starts_its_states(compiled, rule, dtype):
    rng = np.random.default_rng(2)
    memory, local = Memory(rule, dtype, 2, rng), worker_values(rng, dtype, 0)
    memory.run(compiled(rule, "pull", dtype), "pull", local)
    assert same_bits(local, memory.begun[0])
    own = len(memory.begun) - len(rule.local_state)
    assert all(same_bits(a, b) for a, b in zip(memory.buffers(), memory.begun))
    local = worker_values(rng, dtype, 0)
    memory.run(compiled(rule, "take_over", dtype), "take_over", local)
    assert same_bits(local, memory.begun[0])
    found = memory.buffers()
    assert all(same_bits(a, b) for a, b in zip(found[:own], memory.begun[:own]))
    for state, source in zip(found[own:], local_sources(rule)):
        assert same_bits(state, memory.begun[0 if source is None else 1 + source])


@needs_cxx
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ON_DEVICES, ids=str)
def test_a_worker_overwrites_the_center_and_starts_its_states(compiled, rule, dtype, shift):
    rng = np.random.default_rng(4)
    memory, local = Memory(rule, dtype, 2, rng), worker_values(rng, dtype, shift)
    center, shared = memory.begun[0], 1 + len(rule.center_state)
    keep_some(local, center)
    values = [x.copy() for x in local]
    memory.run(compiled(rule, "overwrite", dtype), "overwrite", local)
    assert same_bits(local, values)
    found = memory.buffers()
    assert same_bits(found[0], values)
    for i, (state, before) in enumerate(zip(found[1:shared], memory.begun[1:shared])):
        if i == average_of(rule):
            assert same_bits(state, values)
            continue
        # What workers follow stays, momentum ends where the values are others.
        changed = [(x != c) & (i in momenta(rule)) for x, c in zip(values, center)]
        assert same_bits(state, [np.where(end, b.dtype.type(0), b) for end, b in zip(changed, before)])
    for state, source in zip(found[shared:], local_sources(rule)):
        assert same_bits(state, values if source is None else memory.begun[1 + source])


@needs_nvcc
def test_cuda_compiles_every_kernel(tmp_path):
    """In one file, for speed; the first outside of all namespaces, where names may collide with CUDA's own."""
    texts = []
    for number, (rule, dtype) in enumerate(itertools.product(ON_DEVICES, ["float32", "float64"])):
        for name, operation in operations(rule).items():
            text = kernel_source(f"{name}_{number}", form_of(rule), operation, np.dtype(dtype), 3, 1)
            undone = "".join(f"#undef {macro}\n" for macro in re.findall(r"^#define (\w+)", text, re.MULTILINE))
            texts.append(f"{text}\n{undone}" if not texts else f"namespace {name}_{number}_ {{\n{text}\n}}\n{undone}")
    source = tmp_path / "kernels.cu"
    source.write_text("".join(texts))
    for machine in ("sm_75", "sm_90"):
        command = ["nvcc", "-cubin", f"-arch={machine}", str(source), "-o", str(tmp_path / machine)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=220)
        assert done.returncode == 0, done.stderr
