"""Batch server and reader in one process, where each step is made by hand; other processes are in jobs/test_batches."""

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading

import msgspec
import numpy as np
import pytest
from programs import run_python
from scripts_here import script_path
from watching import until

from platoon_base.data import BatchReader, BatchServer
from platoon_base.data.batch_link import Link, connect_link, listen_at
from platoon_base.data.batch_memory import (
    Batch,
    Hello,
    Part,
    Slot,
    decode_from_server,
    encode,
)
from platoon_base.data.batch_reader import AHEAD
from platoon_base.errors import (
    CollectiveTimeoutError,
    ConfigurationError,
    ProtocolError,
    WorkerLostError,
)

pytestmark = pytest.mark.base

SHORT_S = 0.2


@pytest.fixture
def address(tmp_path):
    return str(tmp_path / "batches")


@pytest.fixture
def server(address):
    with BatchServer(address) as server:
        yield server
        server.close()


@pytest.fixture
def reader(server):
    with BatchReader(server.address, timeout_s=SHORT_S) as reader:
        yield reader


BATCHES = {
    "array": np.arange(6.0),
    "tuple": (np.ones((3, 4), "f4"), np.array([1, 2, 3])),
    "list": [np.array(5), np.array(["a", "bcd"]), np.array([b"x", b"yz"])],
    "dict": {"x": np.array([True, False]), "y": np.array([1 + 2j], "c8")},
    "empty": (np.zeros((0, 7), "f8"), np.zeros((3, 0), "i2")),
    "not contiguous": np.arange(24).reshape(4, 6)[::2, ::-1],
    "Fortran order": np.asfortranarray(np.arange(24).reshape(4, 6)),
    "big endian": np.array([1, 2, 3], ">i4"),
    "half": np.array([1.5, 2.5], "f2"),
    "dates": np.array(["2020-01-01", "2021-02-03"], "M8[D]"),
    "plain numbers": (1.5, [1, 2, 3]),
    "nothing": (),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_arrives_as_it_was_sent(server, reader, name):
    sent = BATCHES[name]
    server.send(sent)
    got = reader.receive()
    if not isinstance(sent, (tuple, list, dict)):
        sent, got = [sent], [got]
    assert type(got) is type(sent)
    if isinstance(sent, dict):
        assert list(got) == list(sent)
        sent, got = list(sent.values()), list(got.values())
    assert len(got) == len(sent)
    for a, b in zip(sent, got):
        assert b.dtype == np.asarray(a).dtype
        np.testing.assert_array_equal(b, a)
        assert b.flags.aligned


@pytest.mark.parametrize(
    "batch", [np.array([object()]), ["a", [1, "b", None]], np.zeros(2, "i4,f8")], ids=["objects", "lists", "records"]
)
def test_what_is_not_its_bytes_is_refused(server, reader, batch):
    with pytest.raises(ConfigurationError, match="got a MaskedArray as array 1 of a batch"):
        server.send((np.zeros(2), np.ma.zeros(2)))
    with pytest.raises(ConfigurationError, match="of dtype"):
        server.send(batch)
    server.send(np.array([7]))
    assert reader.receive() == [7]


def test_arrays_stay_what_they_are_for_as_long_as_the_script_has_them(server, reader):
    """Otherwise a script that keeps batches would see later ones in them."""
    kept = []
    for k in range(20):
        server.send((np.full((50, 20), k),))
        kept.append(reader.receive()[0][10:20].T)
    assert [int(x[0, 0]) for x in kept] == list(range(20))
    assert all((x == k).all() for k, x in enumerate(kept))


def test_memory_is_used_again_and_bounded(server, reader):
    for k in range(100):
        server.send(np.full(100_000, k))
        assert reader.receive()[-1] == k
    assert server.memory_bytes <= 2 * 802_816  # two slots of 800,000 bytes in whole pages


def test_a_send_waits_for_room_and_says_who_has_none(server, reader):
    for k in range(4):
        server.send(np.full(1000, k))
    with pytest.raises(CollectiveTimeoutError, match=r"rank 0 \(pid \d+\) has 4 of 4"):
        server.send(np.zeros(1000), timeout_s=SHORT_S)
    assert server.memory_bytes <= 5 * 8192
    assert [int(reader.receive()[0]) for _ in range(4)] == [0, 1, 2, 3]
    server.send(np.full(1000, 4))
    assert reader.receive()[0] == 4


def test_batches_for_all_lie_in_memory_once_and_cannot_be_written_to(address):
    with BatchServer(address, readers=3) as server:
        readers = [BatchReader(address, rank=rank) for rank in range(3)]
        for k in range(10):
            server.send(np.full(1000, k), to="all")
            batches = [reader.receive() for reader in readers]
            assert [batch.tolist() for batch in batches] == [[k] * 1000] * 3
            assert not any(batch.flags.writeable for batch in batches)
        assert server.memory_bytes <= 2 * 8192
        server.end()
        assert [list(reader) for reader in readers] == [[]] * 3
    assert server.sent == 10


def test_a_batch_goes_to_the_worker_that_has_the_fewest(address):
    with BatchServer(address, readers=2) as server:
        readers = [BatchReader(address, rank=rank) for rank in range(2)]
        for k in range(4):
            server.send(np.array([k]))
        assert sorted([int(reader.receive()[0]) for _ in range(2)] for reader in readers) == [[0, 2], [1, 3]]
        server.send(np.array([4]), to=1)
        assert readers[1].receive() == [4]
        server.close()


def test_a_batch_can_be_written_where_it_is_read(server, reader):
    with server.in_place(((2, 3), "float32"), ((2,), "int64")) as (x, y):
        x[:], y[:] = [[1, 2, 3], [4, 5, 6]], [7, 8]
    got = reader.receive()
    assert [array.tolist() for array in got] == [[[1, 2, 3], [4, 5, 6]], [7, 8]]
    with pytest.raises(ZeroDivisionError), server.in_place(((2,), "int64")) as (y,):
        y[:] = 1 // 0
    assert server.sent == 1


def test_a_worker_that_leaves_while_a_batch_is_made_for_it_has_left(server, reader):
    """It was taken for a dead one that may come again, and the server waited for it."""

    def write():
        with server.in_place(((3,), "f4"), timeout_s=20):
            reader.close()

    server.send(np.zeros(3))
    reader.receive()
    with pytest.raises(WorkerLostError, match="all workers have left"):
        write()
    assert server.lost == 0


@pytest.mark.parametrize("hello", ["before", "after"])
def test_a_worker_that_connects_anew_has_not_left(address, hello):
    """Its second connection is there before the first one ends, maybe without a hello."""
    with BatchServer(address) as server:
        first = BatchReader(address, timeout_s=SHORT_S)
        server.send(np.zeros(3))
        link = connect_link(address)
        if hello == "before":
            link.send(encode(Hello(0, 4)))
        first.close()
        if hello == "after":
            with pytest.raises(CollectiveTimeoutError, match="no worker had room"):
                server.send(np.ones(3), timeout_s=SHORT_S)
            link.send(encode(Hello(0, 4)))
        server.send(np.ones(3), timeout_s=SHORT_S)
        link.close()
        server.close()


def test_own_arrays_and_own_buffers(address):
    with BatchServer(address) as server:
        with BatchReader(address, ahead=1, copy=True) as reader:
            server.send((np.arange(3), np.ones(2, "f4")))
            kept = reader.receive()
            server.send((np.arange(3) + 5, np.ones(2, "f4") * 2))  # into the one slot that there is room for
            buffers = [np.zeros(3, int), np.zeros(2, "f4")]
            assert reader.receive(into=buffers) == buffers
            assert [x.tolist() for x in kept] == [[0, 1, 2], [1, 1]]
            assert [x.tolist() for x in buffers] == [[5, 6, 7], [2, 2]]
            server.send((np.arange(4),))
            with pytest.raises(ConfigurationError, match=r"got buffers of int64\[3\] for a batch of int64\[4\]"):
                reader.receive(into=buffers[:1])
        server.close()


def test_epochs_end_and_data_end(server, reader):
    for epoch in range(2):
        assert server.serve(np.full(3, k) for k in range(3)) == 3
        assert [int(batch[0]) for batch in reader] == [0, 1, 2], epoch
        assert not reader.ended
    server.end()
    assert list(reader) == []
    assert reader.ended
    assert reader.receive() is None
    with pytest.raises(ConfigurationError, match="has ended its data"):
        server.send(np.zeros(1))


def test_the_end_of_the_data_waits_for_workers_that_have_not_come(address):
    server = BatchServer(address, readers=2)
    with BatchReader(address, rank=0):
        with pytest.raises(CollectiveTimeoutError, match="1 of 2 workers have connected"):
            server.end(timeout_s=SHORT_S)
        server.close()


def test_batches_that_were_sent_arrive_after_the_server_is_gone(address):
    with BatchServer(address) as server:
        reader = BatchReader(address)
        server.send(np.arange(3))
        server.send(np.arange(4))
        kept = reader.receive()
        del kept  # so the server leaves without reading a message
        server.end()
    assert [batch.tolist() for batch in reader] == [[0, 1, 2, 3]]
    assert reader.ended
    assert not os.path.exists(address)


def test_an_error_in_the_server_is_told(address):
    with contextlib.suppress(OSError), BatchServer(address) as server:
        reader = BatchReader(address)
        server.send(np.arange(3))
        raise OSError("the file is not there")
    assert reader.receive().tolist() == [0, 1, 2]
    with pytest.raises(WorkerLostError, match="OSError: the file is not there"):
        reader.receive()


def test_a_slow_server_and_none_at_all_are_told_apart(server, reader, tmp_path):
    server.send(np.zeros(1))
    reader.receive()
    with pytest.raises(CollectiveTimeoutError, match=r"is alive but has sent nothing for 0\.2 s"):
        reader.receive()
    server.send(np.ones(1))  # late, and taken after all
    assert reader.receive() == [1]
    with pytest.raises(CollectiveTimeoutError, match="found no batch server at"):
        BatchReader(str(tmp_path / "other"), timeout_s=SHORT_S)


def test_a_closed_server_and_a_closed_reader_say_so(server, reader):
    server.send(np.zeros(1))
    reader.close()
    with pytest.raises(ConfigurationError, match="reader is closed"):
        reader.receive()
    with pytest.raises(WorkerLostError, match="all workers have left"):
        server.send(np.zeros(1), timeout_s=SHORT_S)
    assert server.serve(np.zeros(1) for _ in range(3)) == 0
    server.close()
    with pytest.raises(ConfigurationError, match="server is closed"):
        server.send(np.zeros(1))


def test_a_server_that_another_thread_closes_ends_the_wait_for_room(server, reader):
    server.send(np.zeros(8))
    errors, before = [], server.memory_bytes

    def send_without_end():
        try:
            while True:
                server.send(np.zeros(8))
        except ConfigurationError as exc:
            errors.append(str(exc))

    sender = threading.Thread(target=send_without_end)
    sender.start()
    until(lambda: server.memory_bytes == (AHEAD + 1) * before)  # one batch more than there is room for
    server.close()
    sender.join(200)
    assert errors == ["this batch server is closed: open another one to send more"]


def test_one_server_at_an_address_and_a_dead_ones_socket_is_replaced(server):
    with pytest.raises(ConfigurationError, match="another batch server listens at"):
        BatchServer(server.address)
    assert stat.S_IMODE(os.stat(server.address).st_mode) == 0o600
    server.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(server.address)
    with BatchServer(server.address) as again, BatchReader(server.address) as reader:
        again.send(np.zeros(1))
        assert reader.receive() == [0]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": "a/b"}, "letters, digits"),
        ({"name": "batches"}, "there is no job"),
        ({"address": "/tmp/" + "x" * 120}, "1 to 107 bytes"),
        ({"address": "/no such folder/batches"}, "cannot listen"),
        ({"address": "unused", "readers": 0}, "at least one"),
    ],
)
def test_a_server_that_cannot_be_is_refused(monkeypatch, arguments, why):
    monkeypatch.delenv("PLATOON_JOB", raising=False)
    with pytest.raises(ConfigurationError, match=why):
        BatchServer(**arguments)


# Frames.

PART = Part("<f4", (2, 3), 64)
BATCH = Batch(0, 4096, False, False, "tuple", [], [PART])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"parts": [Part("<f4", (2, 3), 4080)]}, "from byte 4080 on in a slot of 4096"),
        ({"parts": [Part("<f4", (1 << 61, 1 << 61), 0)]}, "in a slot of 4096"),
        ({"parts": [Part("<f4", (-1,), 0)]}, "not a message"),
        ({"parts": [Part("O", (2,), 0)]}, "not plain data"),
        ({"parts": [Part("<V8", (2,), 0)]}, "not plain data"),
        ({"parts": [Part("f4,f4", (2,), 0)]}, "not plain data"),
        ({"parts": [Part("nonsense", (2,), 0)]}, "not plain data"),
        ({"parts": [Part("<f4", (1,) * 33, 0)]}, "not a message"),
        ({"parts": [PART] * 257}, "not a message"),
        ({"form": "dict"}, "1 arrays with 0 names"),
        ({"form": "array", "parts": []}, "0 arrays for a batch of one"),
        ({"form": "code"}, "not a message"),
        ({"slot": -1}, "not a message"),
    ],
)
def test_a_malformed_batch_is_refused(change, why):
    with pytest.raises(ProtocolError, match=why):
        decode_from_server(encode(msgspec.structs.replace(BATCH, **change)))


@pytest.mark.parametrize("frame", [b"\0", b"\x92\x01", b"\xc1", b"{}", b"\x81\xa4type\xa5hello", b"\x9f" * 100])
def test_bytes_that_are_no_message_end_one_connection(address, frame):
    """The server goes on, and a reader gets a clear error."""
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with BatchServer(address) as server, BatchReader(address, rank=0) as reader, stranger:
        stranger.connect(address)
        stranger.send(frame)
        server.send(np.arange(2))
        assert reader.receive().tolist() == [0, 1]
        server.send(np.arange(3))
        assert reader.receive().tolist() == [0, 1, 2]
        assert b"not a message about batches" in stranger.recv(4096)
        assert stranger.recv(4096) == b""


NEW = msgspec.structs.replace(BATCH, new=True)


@pytest.mark.parametrize("frame", [b"\0", encode(BATCH), encode(NEW), b"x" * 70_000])
def test_a_reader_refuses_what_is_no_batch(address, frame):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        with BatchReader(address) as reader:
            other, _ = listener.accept()
            with other:
                other.send(frame)
                with pytest.raises(ProtocolError, match="refused|not a message"):
                    reader.receive()


def test_a_process_that_has_ended_is_seen_though_others_hold_its_socket():
    """Also before its parent has waited for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        link = Link(ours.dup(), process.pid)
        assert not link.dead
        link.close()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        link = Link(ours, process.pid)
        assert link.dead
        link.close()


def test_memory_that_could_be_cut_off_is_refused(tmp_path):
    """Reading past the end of a file that was cut off ends the process."""
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with pytest.raises(ProtocolError, match="refused"):
        Slot.attach(os.open(path, os.O_RDWR), 4096)
    unsealed = os.memfd_create("unsealed")
    os.truncate(unsealed, 4096)
    with pytest.raises(ProtocolError, match="could truncate"):
        Slot.attach(unsealed, 4096)
    slot = Slot.create(10)
    with pytest.raises(ProtocolError, match="for a slot of 8192"):
        Slot.attach(os.dup(slot.fd), 8192)
    with pytest.raises(PermissionError):
        os.truncate(slot.fd, 0)
    slot.close()


CALL_AS_NOBODY = script_path("batches_call_as_nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user, and so root")
def test_batches_go_to_and_come_from_processes_of_one_user_alone(tmp_path):
    """Also where the permissions of the socket's file let others connect."""
    for folder in [tmp_path, *list(tmp_path.parents)[:3]]:
        folder.chmod(0o755)
    address = str(tmp_path / "batches")
    with listen_at(address) as listener:
        os.chmod(address, 0o666)
        said = run_python(CALL_AS_NOBODY, address).stdout.strip()
        assert said == "refused a connection of user 0: batches are shared only between processes of one user"
        for _ in range(2):
            caller, _ = listener.accept()
            with pytest.raises(ProtocolError, match="refused a connection of user 65534"):
                Link(caller)
