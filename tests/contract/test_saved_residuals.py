"""Residuals that are saved with a checkpoint: those of the round that its center includes, on every path."""

import json
import threading

import numpy as np
import pytest
from rounds_in_turns import Group, model, require_same_center
from watching import until

from platoon_base.compression.packing import Residuals
from platoon_base.courier import courier
from platoon_base.courier import messages as between
from platoon_base.courier.keeping import ResidualKeeper
from platoon_base.rules import DiLoCo

pytestmark = pytest.mark.base

PLAIN = DiLoCo(1.0, 0.0)  # the center moves by the mean of what the workers have added
CODECS = ["float16", "bfloat16", "int8", "int4", "int2", "topk(0.01)"]
FEW = [("int8", 0), ("topk(0.01)", 1), ("int4", 2)]  # codecs and the numbers of rules


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch):
    """Let a courier with nothing to do give its turn to the next one soon: all are turns of one loop."""
    monkeypatch.setattr(courier, "POLL_INTERVAL_S", 0.002)


def progress_of(rounds, seed=3):
    random = np.random.default_rng(seed)
    return [
        [[random.standard_normal(a.shape).astype(a.dtype) for a in model(0)] for _ in (0, 1)] for _ in range(rounds)
    ]


def train(group, progress, first=1):
    """Make rounds in which each host adds its own numbers; returns the center after each."""
    found = []
    for number, added in enumerate(progress, first):
        contribute(group, added)
        group.begin(number, [0, 1])
        group.end(number)
        require_same_center(*group.hosts)
        found.append([array.tobytes() for array in group.hosts[0].center.snapshot()[0]])
    return found


def contribute(group, added, *hosts):
    for host, own in zip(hosts or group.hosts, added):
        for array, start, more in zip(host.params, host.center.values, own):
            np.copyto(array, start + more)
        assert host.center.contribute(host.params, 1.0, 10) is None


RULES = [PLAIN, DiLoCo(0.5, 0.5)]


@pytest.mark.parametrize(
    ("codec", "rule"),
    [
        pytest.param(codec, rule, marks=[pytest.mark.product] * ((codec, i) not in FEW))
        for codec in CODECS
        for i, rule in enumerate(RULES)
    ],
)
def test_rounds_that_go_on_with_saved_residuals_have_the_bits_of_those_that_were_not_interrupted(codec, rule):
    progress = progress_of(6)
    with Group([1.0, 1.0], rule, compression=codec) as group:
        group.get_ready()
        train(group, progress[:3])
        values, states = group.hosts[0].center.snapshot()
        saved = [Residuals(h.layout, h.memory).after(3, h.center.overwrites.stamp) for h in group.hosts]
        saved = [[array.copy() for array in each] for each in saved]
        assert all(any(array.any() for array in each) for each in saved)
        for host in group.hosts:  # in the other fragments they are not at the center
            host.center.read(host.params, True, 10, begin=True)
        expected = train(group, progress[3:], first=4)
    with Group([1.0, 1.0], rule, compression=codec) as again:
        for host, residuals in zip(again.hosts, saved):
            host.center.fill(values, states)
            Residuals(host.layout, host.memory).restore(residuals)
        again.get_ready()
        assert train(again, progress[3:]) == expected


def keep(host, folder, number, stamp=0, key="aa", kept=("aa",)):
    """Let a host save its residual; returns what its courier reports of it once that is done."""
    host.handle_order(between.Keep(str(folder), number, stamp, key, list(kept)))
    host.courier.finish()
    host.orders.pop()  # a courier that is started again does not get it
    return [news.problem for news in host.news if isinstance(news, between.Kept) and news.key == key]


def saved_in(folder, host, key="aa"):
    with np.load(folder / f"residual-{host}-{key}.npz") as file:
        return [file[f"residual/{i}"] for i in range(2)]


def latest_of(host):
    return [array.copy() for array in Residuals(host.layout, host.memory).latest]


def require_equal(found, expected):
    assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]


@pytest.mark.parametrize("packed", [False, True])
def test_a_host_saves_the_residual_of_a_round_until_the_second_one_after_it(tmp_path, packed):
    progress = progress_of(5)
    with Group([1.0, 1.0], PLAIN, compression="int4") as group:
        group.get_ready()
        train(group, progress[:3])
        host = group.hosts[1]
        of_3 = latest_of(host)
        if packed:
            contribute(group, progress[3])
            group.begin(4, [0, 1])
            group.until(lambda: sum(isinstance(n, between.Gathered) for n in host.news) == 4)
            assert latest_of(host)[0].tobytes() != of_3[0].tobytes()
        assert keep(host, tmp_path, 3) == [""]
        require_equal(saved_in(tmp_path, 1), of_3)
        assert any(array.any() for array in of_3)
        if packed:
            group.end(4)
            train(group, progress[4:], first=5)
            (problem,) = keep(host, tmp_path, 3, key="bb")
            assert "of a later round" in problem
            assert not (tmp_path / "residual-1-bb.npz").exists()


@pytest.mark.parametrize("when", ["decided", "next", "next packed", "without workers"])
def test_a_contribution_that_did_not_count_is_not_in_what_is_saved(tmp_path, when):
    """The second host is behind in round 3, and may have no workers in round 4. It saves what it had before."""
    progress = progress_of(4)
    with Group([1.0, 1.0], PLAIN, compression="int4") as group:
        group.get_ready()
        train(group, progress[:1])
        first, second = group.hosts
        before = latest_of(second)
        contribute(group, progress[1], first)
        group.begin(2, [0])
        group.end(2, 0)
        contribute(group, progress[2])
        group.begin(3, [0, 1])
        group.until(lambda: any(isinstance(n, between.Gathered) and n.number == 3 for n in second.news))
        require_not_equal(latest_of(second), before)
        group.until(group.report)  # the decision is there, and the second host has not gone on yet
        assert group.table.hosts == [0, 1]
        if when == "without workers":
            assert keep(second, tmp_path, 4) == [""]
            require_equal(saved_in(tmp_path, 1), before)
            return
        if when != "decided":
            group.end(3)
            contribute(group, progress[3])
            group.begin(4, [0, 1])
            if when == "next packed":
                group.until(lambda: any(isinstance(n, between.Gathered) and n.number == 4 for n in second.news))
                require_not_equal(latest_of(second), before)
        assert keep(second, tmp_path, 3) == [""]
        require_equal(saved_in(tmp_path, 1), before)
        assert keep(first, tmp_path, 3) == [""]
        require_not_equal(saved_in(tmp_path, 0), before)


def require_not_equal(found, other):
    assert any(a.tobytes() != b.tobytes() for a, b in zip(found, other))


def test_what_a_later_round_has_begun_to_overwrite_is_not_saved():
    """A courier that dies while it packs leaves a part of a newer residual in place of the older one."""
    with Group([1.0], PLAIN, compression="int4") as group:
        (host,) = group.hosts
        residuals = Residuals(host.layout, host.memory)
        for number in (1, 2):
            residuals.begin(number, 0)[1][0][:] = number
            residuals.end(number)
        assert residuals.after(1, 0)[0][0] == 1
        assert residuals.after(2, 0)[0][0] == 2
        residuals.begin(3, 0)[1][0][:5] = 3
        again = Residuals(host.layout, host.memory)
        assert again.after(1, 0) is None
        assert again.after(2, 0)[0][0] == 2
        again.undo(3)
        assert again.after(2, 0)[0][0] == 2


def test_residuals_of_an_overwritten_center_are_zero_and_those_from_before_are_gone(tmp_path):
    progress = progress_of(2)
    with Group([1.0, 1.0], PLAIN, compression="int4") as group:
        group.get_ready()
        train(group, progress[:1])
        host = group.hosts[1]
        residuals = Residuals(host.layout, host.memory)
        assert not any(array.any() for array in residuals.after(1, 7))
        assert residuals.after(1, 0)[0].any()
        residuals.begin(2, 7)
        assert residuals.after(1, 0) is None
        residuals.end(2)
        (problem,) = keep(host, tmp_path, 1)
        assert "of an overwritten center" in problem


def test_files_of_checkpoints_that_are_gone_and_unfinished_ones_are_removed(tmp_path):
    for name in ("residual-1-0a.npz", "residual-1-0b.npz", "residual-0-0a.npz", "residual-2-0a.npz", "other.npz",
                 "unfinished-residual-1-0c.npz", "unfinished-residual-0-0c.npz"):  # fmt: skip
        (tmp_path / name).write_text("")
    with Group([1.0, 1.0], PLAIN, compression="int4") as group:
        group.get_ready()
        assert keep(group.hosts[1], tmp_path, 0, kept=("0b", "aa")) == [""]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other.npz", "residual-0-0a.npz", "residual-1-0b.npz", "residual-1-aa.npz", "unfinished-residual-0-0c.npz",
    ]  # fmt: skip


def restored(group, folder, host=1, key="aa"):
    """Go on from a checkpoint; returns the residual of a host and why there is none."""
    which, news = group.hosts[host], []
    residuals = Residuals(which.layout, bytearray(len(which.memory)))
    for _ in range(2):  # the courier that is started again finds what the first has done
        keeper = ResidualKeeper(which.world, which.layout, residuals, news.append)
        restoring = keeper.restore(str(folder), key)
        until(restoring.step)
    return residuals.latest, [each.problem for each in news]


def test_a_courier_goes_on_with_what_was_saved_or_says_why_not(tmp_path):
    with Group([1.0, 1.0], PLAIN, compression="int4") as group:
        group.get_ready()
        train(group, progress_of(1))
        keep(group.hosts[1], tmp_path, 1)
        found, problems = restored(group, tmp_path)
        require_equal(found, latest_of(group.hosts[1]))
        assert problems == []
        broken = [("missing", "cannot be read"), ("damaged", "is damaged")]
        other = {"key": {}, "host": {"host": 0}, "compression": {"compression": "int8"}}
        for key, text in [*broken, *((key, "is of another") for key in other)]:
            if key == "damaged":
                (tmp_path / "residual-1-damaged.npz").write_bytes(b"PK\3\4" + bytes(100))
            if key in other:
                with np.load(tmp_path / "residual-1-aa.npz") as file:
                    about = json.loads(file["about"].tobytes())
                    assert set(other[key]) <= set(about)
                    about.update({"key": key} if key != "key" else {}, **other[key])
                    arrays = {**file, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
                np.savez(tmp_path / f"residual-1-{key}.npz", **arrays)
            found, problems = restored(group, tmp_path, key=key)
            assert not any(array.any() for array in found)
            assert len(problems) == 1
            assert text in problems[0]


def test_a_copy_of_the_center_publishes_its_round_unless_an_overwrite_is_in_progress():
    published = []

    def publish(number, stamp):
        published.append((number, stamp))

    with Group([1.0, 1.0], PLAIN, compression="int4") as group:
        group.get_ready()
        train(group, progress_of(2))
        center = group.hosts[0].center
        center.snapshot(publish=publish)
        assert published == [(2, 0)]
        writing = threading.Thread(target=center.write, args=(model(5.0), True, 20))
        writing.start()
        while center.overwrites.written == 0:
            pass
        center.snapshot(publish=publish)
        assert published == [(2, 0)]
        group.until(lambda: not writing.is_alive())
        center.snapshot(publish=publish)
        assert published == [(2, 0), (2, center.overwrites.stamp)]
        center.overwrites.expect(center.overwrites.stamp + 1)  # of another host
        center.snapshot(publish=publish)
        assert len(published) == 2
