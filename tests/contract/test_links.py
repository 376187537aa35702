"""Links between hosts: who may open one, and what passes through it. All sockets are real."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import select
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
from scripts_here import script_path
from watching import until

from platoon_base.errors import BackendUnavailableError, PlatoonError
from platoon_base.links import handshake
from platoon_base.links.handshake import Address, Caller, Listener, Opening, open_links
from platoon_base.links.stream import (
    MAX_PAYLOAD_BYTES,
    TAG_BYTES,
    AlteredError,
    BrokenStreamError,
    Cipher,
    KeyExchange,
    Stream,
    derive_keys,
)
from platoon_base.system.process import awake

pytestmark = pytest.mark.base

KEY = bytes(range(32))
PATIENCE_S = 20  # never reached by a test that passes
SIZES = [0, 1, 15, 16, 1000, (1 << 14) - 1, 1 << 14, 70_000, MAX_PAYLOAD_BYTES]


def call(listener, key, rank=1, called=0, seconds=PATIENCE_S, address=None):
    own = Listener("127.0.0.1")
    try:
        deadline = awake() + seconds
        calls = {called: address or listener.address}
        return open_links(own, rank, key, calls, frozenset(), deadline, lambda ranks: None)[called]
    finally:
        own.close()


def answer(listener, key, expected=(1,), seconds=PATIENCE_S):
    deadline = awake() + seconds
    return open_links(listener, 0, key, {}, frozenset(expected), deadline, lambda ranks: None)


@pytest.fixture
def listener():
    made = Listener("127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(params=[KEY, b""], ids=["encrypted", "plain"])
def pair(request, listener, threads):
    waiting = threads.submit(answer, listener, request.param)
    caller = call(listener, request.param)
    answered = waiting.result()[1]
    yield caller, answered
    caller.close()
    answered.close()


class Keeping:
    """Keeps the records that come; holds those of tag 99 until it is told otherwise."""

    def __init__(self):
        self.records, self.holding = [], True
        self._room = bytearray()

    def place(self, tag, offset, length):
        if tag == 99 and self.holding:
            return None
        self._room = bytearray(length)
        return memoryview(self._room)

    def done(self, tag, offset, length):
        assert len(self._room) == length
        self.records.append((tag, offset, bytes(self._room)))


def pass_on(sender, receiver, keeping, count):
    until(lambda: len(keeping.records) >= count, step=lambda: (sender.push(), receiver.pull(keeping)))


def pull_all(stream, keeping):
    while stream.pull(keeping) or select.select([stream], [], [], PATIENCE_S)[0]:
        pass


def test_records_of_all_sizes_come_as_they_were_sent(pair):
    rng = np.random.default_rng(0)
    for sender, receiver in (pair, pair[::-1]):
        sent = [(i, 1 << 40 | i, rng.bytes(size)) for i, size in enumerate(SIZES * 3)]
        keeping = Keeping()
        for record in sent:
            sender.post(*record)
        pass_on(sender, receiver, keeping, len(sent))
        assert keeping.records == sent
        assert (sender.sent, sender.posted) == (len(sent), len(sent))
        assert not sender.push()
        assert not receiver.pull(keeping)


def test_sends_in_both_directions_at_once_do_not_wait_for_each_other(pair):
    payload = secrets.token_bytes(MAX_PAYLOAD_BYTES)
    for stream in pair:
        for i in range(90):  # more than sockets hold
            stream.post(i, 0, payload)
    kept = [Keeping(), Keeping()]

    def step():
        for stream, keeping in zip(pair, kept):
            stream.push()
            stream.pull(keeping)

    until(lambda: min(len(each.records) for each in kept) == 90, step=step)
    assert all(record == (i, 0, payload) for each in kept for i, record in enumerate(each.records))


def test_a_record_can_be_left_for_later(pair):
    sender, receiver = pair
    keeping = Keeping()
    for record in ((1, 0, b"a"), (99, 0, b"b" * 100_000), (2, 0, b"c")):
        sender.post(*record)
    pass_on(sender, receiver, keeping, 1)
    until(lambda: receiver.held, step=lambda: (sender.push(), receiver.pull(keeping)))
    assert len(keeping.records) == 1
    keeping.holding = False
    pass_on(sender, receiver, keeping, 3)
    assert [(tag, len(payload)) for tag, _, payload in keeping.records] == [(1, 1), (99, 100_000), (2, 1)]


def test_nothing_follows_a_push_that_was_torn():
    """A part of a record may be on its way: what follows would be taken for its rest."""
    sock = Mock()
    sock.sendmsg.side_effect = [KeyboardInterrupt, BlockingIOError]
    stream = Stream(sock, None, None)
    stream.post(1, 0, b"a")
    with pytest.raises(KeyboardInterrupt):
        stream.push()
    assert not stream.push()
    sock.sendmsg.assert_called_once()


def test_records_that_are_dropped_are_not_waited_for(pair):
    sender, receiver = pair
    for i in range(90):  # more than sockets hold
        sender.post(i, 0, bytes(MAX_PAYLOAD_BYTES))
    sender.push()
    sender.drop_queue()
    keeping = Keeping()
    pass_on(sender, receiver, keeping, sender.posted)
    assert sender.sent == sender.posted == len(keeping.records) < 90


def test_the_end_of_a_connection_is_seen_after_all_that_came(pair):
    sender, receiver = pair
    keeping = Keeping()
    sender.post(1, 2, b"last")
    sender.push()
    sender.close()
    sender.close()
    with pytest.raises(BrokenStreamError, match="closed"):
        pull_all(receiver, keeping)
    assert keeping.records == [(1, 2, b"last")]


def test_a_record_that_is_too_long_is_refused(pair):
    sender, _ = pair
    with pytest.raises(ValueError, match="at most"):
        sender.post(0, 0, bytes(MAX_PAYLOAD_BYTES + 1))


def two_ciphers(sock_a, sock_b):
    keys = derive_keys(b"secret", b"transcript")
    return Stream(sock_a, Cipher(keys[0]), Cipher(keys[1])), Stream(sock_b, Cipher(keys[1]), Cipher(keys[0]))


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = socket.create_connection(server.getsockname())
        return a, server.accept()[0]


@pytest.mark.parametrize("change", ["payload", "header", "tag", "replay", "skip", "reorder", "length", "reflect"])
def test_what_is_changed_between_hosts_is_refused(change):
    """The records of one stream pass through this test, which changes them, to the other."""
    (near, between_a), (between_b, far) = tcp_pair(), tcp_pair()
    sender, receiver = two_ciphers(near, far)
    size = 16 + 100 + TAG_BYTES
    try:
        for i in range(3):
            sender.post(i, 0, bytes([i]) * 100)
        sender.push()
        raw = b""
        while len(raw) < 3 * size:
            raw += between_a.recv(3 * size - len(raw))
        records = [bytearray(raw[i * size : (i + 1) * size]) for i in range(3)]
        if change in ("payload", "header", "tag"):
            records[1][{"payload": 20, "header": 4, "tag": size - 1}[change]] ^= 1
        elif change == "replay":
            records.insert(1, records[0])
        elif change == "skip":
            del records[1]
        elif change == "reorder":
            records[1:] = records[:0:-1]
        elif change == "length":
            records[1][:4] = (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little")
        keeping = Keeping()
        if change == "reflect":
            between_a.sendall(records[0])
            with pytest.raises(BrokenStreamError) as caught:
                pull_all(sender, keeping)
        else:
            between_b.sendall(b"".join(records))
            with pytest.raises(BrokenStreamError) as caught:
                pull_all(receiver, keeping)
            assert [tag for tag, _, _ in keeping.records] == [0]
        assert caught.value.altered
    finally:
        for each in (sender, receiver, between_a, between_b):
            each.close()


def test_nothing_that_is_encrypted_passes_in_the_clear(listener, threads):
    seen, from_caller, from_listener = [], [], []
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def carry():
            near, _ = relay.accept()
            with near, socket.create_connection((listener.address.host, listener.address.port)) as far:
                while True:
                    ready, _, _ = select.select([near, far], [], [], PATIENCE_S)
                    for sock in ready:
                        data = sock.recv(1 << 16)
                        if not data:
                            return
                        seen.append(data)
                        (from_caller if sock is near else from_listener).append(data)
                        (far if sock is near else near).sendall(data)

        carrying = threads.submit(carry)
        waiting = threads.submit(answer, listener, KEY)
        host, port = relay.getsockname()
        caller = call(listener, KEY, address=Address(host, port, listener.address.token))
        answered = waiting.result()[1]
        caller.post(1, 0, b"plain text " * 500)
        pass_on(caller, answered, Keeping(), 0)
        keeping = Keeping()
        pass_on(caller, answered, keeping, 1)
        assert keeping.records == [(1, 0, b"plain text " * 500)]
        caller.close()
        answered.close()
        carrying.result(PATIENCE_S)
    assert sum(map(len, seen)) > 5500
    assert b"plain text" not in b"".join(seen)
    assert listener.address.token not in b"".join(seen)
    # Nor does the key of the job decrypt a record later: each connection has keys of its own.
    sent, size = b"".join(from_caller), struct.calcsize("<8s32sII")
    transcript = sent[:size] + b"".join(from_listener)[:32]
    record = memoryview(sent)[size + 32 :]
    secret = hmac.new(KEY, listener.address.token, "sha256").digest()
    cipher = Cipher(derive_keys(secret, transcript)[0])
    with pytest.raises(AlteredError):
        cipher.open(bytes(record[:16]), record[16 : 16 + 5500 + TAG_BYTES], memoryview(bytearray(5500)))


def test_a_public_key_without_a_secret_is_refused(listener, opening, connect, caplog):
    """With it the shared secret would be known, even to who only listens."""
    hello = greeting(number=bytes(32))
    (caller,) = connect(hello)
    step_until(opening, lambda: opening.greeted)
    caller.sendall(proof_for(listener, hello, caller.recv(64, socket.MSG_WAITALL)))
    step_until(opening, lambda: "public key is invalid" in caplog.text)
    assert not opening.open


def test_decryption_does_without_the_newer_functions(monkeypatch):
    """As with cryptography before version 47."""
    keys = derive_keys(b"a", b"b")
    first, second = (Cipher(keys[0], in_place=False) for _ in range(2))
    sealed, out = memoryview(bytearray(5 + TAG_BYTES)), memoryview(bytearray(5))
    first.seal(b"h", b"hello", sealed)
    second.open(b"h", sealed, out)
    assert bytes(out) == b"hello"
    with pytest.raises(AlteredError):
        second.open(b"h", sealed, out)


def test_keys_are_those_of_hkdf():
    """HKDF of RFC 5869 by the package that is used for the cipher."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"platoon data between hosts, version 1"
    expected = HKDF(SHA256(), 64, salt=b"transcript", info=info).derive(b"secret")
    assert b"".join(derive_keys(b"secret", b"transcript")) == expected


def test_without_the_package_the_remedy_is_named():
    code = script_path("links_without_the_package_the_remedy_is_named")
    done = subprocess.run([sys.executable, code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(BackendUnavailableError.__name__)
    assert 'pip install "platoon-plugins[hosts]"' in done.stdout


@pytest.mark.parametrize("what", ["key", "token"])
def test_a_caller_finds_that_the_listener_has_another_key(listener, threads, what):
    waiting = threads.submit(answer, listener, KEY, seconds=2)
    key = KEY if what == "token" else bytes(32)
    address = listener.address._replace(token=bytes(16)) if what == "token" else None
    with pytest.raises(PlatoonError, match="not rank 0 of this job, or has another key"):
        call(listener, key, address=address)
    with pytest.raises(PlatoonError, match=r"no link to the ranks \[1\]"):
        waiting.result()


PUBLIC_KEY = KeyExchange().public


def greeting(rank=1, called=0, magic=b"PLTNLNK2", number=PUBLIC_KEY):
    return struct.pack("<8s32sII", magic, number, rank, called)


STRANGERS = {
    "garbage": secrets.token_bytes(10_000),
    "http": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + b"x" * 100,
    "nothing": b"",
    "half a greeting": greeting()[:20],
    "a greeting and no proof": greeting(),
    "a false proof": greeting() + bytes(32),
    "another version": greeting(magic=b"PLTNLNK9") + bytes(32),
    "a rank that is not expected": greeting(rank=7) + bytes(32),
    "itself": greeting(rank=0) + bytes(32),
    "another rank": greeting(called=3) + bytes(32),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_strangers_do_no_harm(listener, threads, what, caplog):
    """They come first and stay; those of the job are let in all the same."""
    address = listener.address.host, listener.address.port
    strangers = [socket.create_connection(address) for _ in range(5)]
    try:
        for stranger in strangers:
            stranger.sendall(STRANGERS[what])
        with caplog.at_level(logging.WARNING):
            waiting = threads.submit(answer, listener, KEY)
            caller = call(listener, KEY)
            answered = waiting.result()[1]
        caller.post(1, 1, b"hello")
        keeping = Keeping()
        pass_on(caller, answered, keeping, 1)
        caller.close()
        answered.close()
        assert len([r for r in caplog.records if "refused a connection from 127.0.0.1" in r.getMessage()]) <= 1
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_rank_with_the_key_that_is_not_expected_is_refused(listener, threads, caplog):
    with caplog.at_level(logging.WARNING):
        waiting = threads.submit(answer, listener, KEY)
        stranger = threads.submit(call, listener, KEY, rank=7, seconds=1.0)
        caller = call(listener, KEY)
        assert set(waiting.result()) == {1}
    assert isinstance(stranger.exception(), PlatoonError)
    caller.close()
    waiting.result()[1].close()


def test_who_is_silent_is_dropped_in_time(listener, threads, monkeypatch):
    monkeypatch.setattr(handshake, "timeout", {"handshake": 0.2, "link": 6.0}.get)
    waiting = threads.submit(answer, listener, KEY)
    with socket.create_connection((listener.address.host, listener.address.port)) as stranger:
        stranger.settimeout(PATIENCE_S)
        assert stranger.recv(1) == b""  # without having said anything
    call(listener, KEY).close()
    waiting.result()[1].close()


@pytest.fixture
def opening(listener):
    """What takes the calls of rank 1, and calls nobody itself; each test drives it."""
    made = Opening(listener, Caller(0, KEY, frozenset({1})), {})
    yield made
    made.close()
    for stream in made.open.values():
        stream.close()


@pytest.fixture
def connect(listener):
    with contextlib.ExitStack() as stack:

        def make(data=b"", count=1):
            address = listener.address.host, listener.address.port
            made = [stack.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(count)]
            for sock in made:
                sock.sendall(data)
            return made

        yield make


@pytest.fixture
def calling():
    """Makes what calls rank 0 at an address, and takes no calls itself; each test drives it."""
    with contextlib.ExitStack() as stack:

        def make(address):
            own = Listener("127.0.0.1")
            stack.callback(own.close)
            made = Opening(own, Caller(1, KEY, frozenset()), {0: address})
            stack.callback(made.close)
            stack.callback(lambda: [stream.close() for stream in made.open.values()])
            return made

        yield make


def step_until(opening, done):
    until(done, step=lambda: opening.step(awake() + 0.01))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def proof_for(listener, hello, answer):
    secret = hmac.new(KEY, listener.address.token, "sha256").digest()
    return hmac.new(secret, b"caller" + hello + answer[:32], "sha256").digest()


@pytest.mark.parametrize("what", ["nothing", "half a greeting"])
def test_who_says_which_rank_it_is_does_not_make_room_for_strangers(listener, opening, connect, what):
    hello = greeting()
    (caller,) = connect(hello)
    step_until(opening, lambda: opening.greeted)
    before = descriptors()
    for times in range(1, 4):
        connect(STRANGERS[what], handshake.MAX_PENDING)
        opening.step(awake())
        opening.step(awake())
        assert descriptors() <= before + (times + 1) * handshake.MAX_PENDING
    answer = caller.recv(64, socket.MSG_WAITALL)
    caller.sendall(proof_for(listener, hello, answer))
    step_until(opening, lambda: 1 in opening.open)


def test_many_that_say_they_are_of_the_job_are_bounded(listener, opening, connect, threads):
    before = descriptors()
    for _ in range(3):
        strangers = connect(greeting(), 100)
        for _ in range(3):
            opening.step(awake())
        assert descriptors() <= before + len(strangers) + handshake.MAX_GREETED
        for each in strangers:
            each.close()
    calling = threads.submit(call, listener, KEY)
    step_until(opening, lambda: 1 in opening.open)
    calling.result().close()


FLOOD = script_path("links_flood")


@pytest.mark.parametrize("data", [b"", greeting()], ids=["silent", "greeting"])
def test_a_flood_keeps_no_courier_from_its_links(listener, opening, threads, data):
    """Couriers look at their listener every 0.05 s: until then the system keeps those that come."""
    command = [sys.executable, FLOOD, str(listener.address.port), data.hex(), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as flooding:
        try:
            opening.step(awake())
            assert flooding.stdout.readline()
            calling = threads.submit(call, listener, KEY, seconds=3 * PATIENCE_S)
            until(lambda: 1 in opening.open, step=lambda: (opening.step(awake()), select.select([], [], [], 0.05)))
            calling.result().close()
        finally:
            flooding.kill()


def test_a_process_without_descriptors_neither_ends_nor_spins():
    code = script_path("links_a_process_without_descriptors_neither_ends")
    done = subprocess.run([sys.executable, code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("raise the limit") <= 20


def test_a_stranger_that_answers_does_not_end_the_calls(threads, calling, caplog):
    """As at the port of a courier that has ended; then the true one listens there."""
    late = Listener("127.0.0.1")
    opening = calling(late.address)
    late.sock.setblocking(False)
    came = []

    def answer_some():  # as a stranger
        with contextlib.suppress(BlockingIOError):
            came.append(late.sock.accept()[0])
            came[-1].sendall(bytes(64))
        return len(came) > 4

    step_until(opening, answer_some)
    for sock in came:
        sock.close()
    assert len([record for record in caplog.records if "not rank 0 of this job" in record.getMessage()]) == 1
    try:
        answering = threads.submit(answer, late, KEY)
        step_until(opening, lambda: 0 in opening.open)
        answering.result()[1].close()
    finally:
        late.close()


def test_a_rank_that_is_forgotten_is_not_called(listener, threads, calling):
    opening = calling(listener.address)
    opening.step(awake())  # the call has begun
    assert opening.missing == [0]
    opening.forget(0)
    opening.forget(0)
    assert opening.missing == []
    assert opening.why() == ""
    until = awake() + 0.2
    while awake() < until:
        opening.step(until)
    listener.sock.accept()[0].close()  # that one, and no other
    with pytest.raises(BlockingIOError):
        listener.sock.accept()
    opening.call_again(0)
    assert opening.missing == []
    opening.call(0, listener.address)
    answering = threads.submit(answer, listener, KEY)
    step_until(opening, lambda: 0 in opening.open)
    answering.result()[1].close()


def test_a_new_address_of_a_rank_is_called_at_once(listener, threads, calling):
    """Though the call of the one before is still open."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        opening = calling(Address(*silent.getsockname(), bytes(16)))
        step_until(opening, lambda: select.select([silent], [], [], 0)[0])
        opening.call(0, listener.address)
        answering = threads.submit(answer, listener, KEY)
        began = awake()
        step_until(opening, lambda: 0 in opening.open)
        assert awake() < began + 0.4  # the call before has 0.5 s
        answering.result()[1].close()


@pytest.mark.parametrize("warning_s", [0.1, 10.0])
def test_the_wait_for_a_link_has_an_end_and_says_for_whom(listener, monkeypatch, caplog, warning_s):
    monkeypatch.setattr(handshake, "timeout", {"link": warning_s}.get)
    closed = Listener("127.0.0.1")
    closed.close()
    deadline = awake() + 0.3
    with pytest.raises(PlatoonError, match=r"rank 0 has no link to the ranks \[3, 5\].*rank 5 at 127.0.0.1: .*refused"):
        open_links(listener, 0, KEY, {5: closed.address}, frozenset({3}), deadline, lambda ranks: None)
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(";")[0] for text in said] == [
        "rank 0 has no link to the ranks [3, 5] of other hosts so far"
    ] * (warning_s < 0.3)


def test_the_wait_ends_for_a_reason(listener):
    class GoneError(Exception):
        pass

    def give_up(ranks):
        raise GoneError(ranks)

    with pytest.raises(GoneError) as caught:
        open_links(listener, 0, KEY, {}, frozenset({3}), awake() + PATIENCE_S, give_up)
    assert caught.value.args == ([3],)


def test_an_address_of_another_host_is_refused():
    with pytest.raises(PlatoonError, match="cannot listen at 192.0.2.1 .*an address of this host"):
        Listener("192.0.2.1")
