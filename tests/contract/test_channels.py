"""The contract of a channel, over ZeroMQ and in process: one suite over all back ends."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from interrupting import at_instruction

from platoon_base.channels import Received
from platoon_base.channels.client import ControlClient
from platoon_base.channels.inproc import InprocHub
from platoon_base.channels.server import ControlServer
from platoon_base.channels.zmq import ZmqClient, ZmqServer
from platoon_base.coordination import messages as msg
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import decode_reply, decode_request, encode
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.shm.job_state import JobState

pytestmark = pytest.mark.base

CHANNELS = "platoon_base/channels"


def new_words():
    return JobState(bytearray(JobState.size_bytes(8)), rows=8, create=True)


class Inproc:
    def __init__(self, coordinator, handler, folder):
        self._hub = InprocHub(coordinator, new_words(), handler)

    def connect(self):
        return self._hub.connect()

    def die(self):
        self._hub.close()

    def close(self):
        pass


class Zmq:
    """A server thread that does what the controller does, on a real socket."""

    def __init__(self, coordinator, handler, folder):
        self._alive = True
        self._address = f"ipc://{folder}/control"
        server = ZmqServer(self._address)
        requests = ControlServer(coordinator, new_words(), server.reply, handler)

        def serve():
            while self._alive:
                received, _ = server.wait(0.02)
                for one in received:
                    requests.receive(one, time.monotonic())
                requests.carry_out(coordinator.tick(time.monotonic()))
            server.close()

        self._thread = threading.Thread(target=serve)
        self._thread.start()

    def connect(self):
        return ZmqClient(self._address, lambda: self._alive)

    def die(self):
        self._alive = False
        self._thread.join()

    close = die


@pytest.fixture(params=[Inproc, Zmq])
def backend(request, tmp_path):
    coordinator = Coordinator(2)

    def handler(req, rank, info):
        return [req, rank, coordinator.reported.get("handled") if req == "reported" else info]

    made = request.param(coordinator, handler, tmp_path)
    yield made
    made.close()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def clients(backend, threads):
    opened = [backend.connect() for _ in range(2)]
    yield opened
    for client in opened:
        client.close()


def ask(client, request, timeout_s=20.0):
    return decode_reply(client.request(encode(request), timeout_s))


def join(client, rank):
    return ask(client, msg.Hello(protocol=msg.PROTOCOL, pid=1, host="here", device="cpu", rank=rank))


@pytest.fixture
def joined(clients):
    for rank, client in enumerate(clients):
        join(client, rank)
    return clients


def test_a_request_gets_its_answer(clients):
    assert join(clients[0], 0) == msg.Welcome(rank=0, size=2, local_rank=0, local_size=2, seed=0)
    assert ask(clients[0], msg.UserRequest(req="x", info={"a": [1, 2.5, None, b"z"]})) == msg.UserReply(
        answer=["x", 0, {"a": [1, 2.5, None, b"z"]}]
    )


def test_an_answer_may_come_later_and_only_to_whom_it_belongs(joined, threads):
    def add(rank):
        return ask(joined[rank], msg.Sum(name="r", pairs={"m": (float(rank), 1.0)}, timeout_s=20))

    assert list(threads.map(add, (0, 1))) == [msg.Sums(pairs={"m": (1.0, 2.0)}, ranks=[0, 1], lost=[])] * 2


def test_values_are_gathered_by_rank_whoever_comes_first(joined, threads):
    values = [["a", 1, 2.5, None], {"b": [b"\0", True]}]

    def gather(rank):
        return ControlClient(joined[rank], rank).gather("votes", values[rank], 20.0)

    assert list(threads.map(gather, (1, 0))) == [values, values]


def test_a_late_answer_is_not_taken_for_the_next_one(joined):
    with pytest.raises(CollectiveTimeoutError):
        ask(joined[0], msg.Meet(name="r", timeout_s=60), timeout_s=0.1)
    assert isinstance(ask(joined[1], msg.Meet(name="r", timeout_s=20)), msg.Met)
    assert ask(joined[0], msg.UserRequest(req="next")) == msg.UserReply(answer=["next", 0, None])


def test_the_coordinators_deadline_names_who_is_missing(clients):
    join(clients[0], 0)
    reply = ask(clients[0], msg.Meet(name="r", timeout_s=0.1))
    assert isinstance(reply, msg.Failure)
    assert "rank 1 (expected)" in reply.message


def test_what_cannot_be_decoded_is_answered(clients):
    for data in (b"", b"\xff\xff", b"{}", np.random.default_rng(0).bytes(100), b"\0" * (msg.MAX_BYTES + 1)):
        reply = decode_reply(clients[0].request(data, 20))
        assert isinstance(reply, msg.Failure)
        assert reply.kind == "ProtocolError"
    assert isinstance(join(clients[0], 0), msg.Welcome)


def test_a_wait_ends_when_the_controller_dies(backend, clients, threads):
    join(clients[0], 0)
    waiting = threads.submit(ask, clients[0], msg.Meet(name="r", timeout_s=60), 60)
    backend.die()
    with pytest.raises(WorkerLostError, match="controller"):
        waiting.result()


def test_a_signal_handler_may_ask_whatever_it_interrupts(backend, clients):
    """After every instruction of a request the handler makes another, which works at once or right afterwards."""
    client = clients[0]
    join(client, 0)
    number, step, answers = 0, 1 if isinstance(backend, Inproc) else 5, []

    def handler():
        handled.append(ask(client, msg.Report(metrics={"handled": number})))

    def request():
        answers.append(ask(client, msg.UserRequest(req="outer", info=number)))

    handled = [msg.Done()]
    while handled.pop() == msg.Done():
        number += step
        if not at_instruction(number, request, handler, where=CHANNELS):
            break
        assert answers.pop() == msg.UserReply(answer=["outer", 0, number])
        assert ask(client, msg.UserRequest(req="reported")) == msg.UserReply(answer=["reported", 0, number])
    assert number > 50


def test_in_a_signal_handler_a_request_is_answered_or_refused_with_a_remedy(backend, clients):
    client = clients[0]
    join(client, 0)
    number, outcomes, answers = 1, [], []

    def handler():
        try:
            outcomes.append(ask(client, msg.UserRequest(req="inner")).answer)
        except ConfigurationError as exc:
            outcomes.append("make this call in the training loop" in str(exc))

    def request():
        answers.append(ask(client, msg.UserRequest(req="outer", info=number)))

    while at_instruction(number, request, handler, where=CHANNELS):
        number += 7
        assert answers.pop().answer[:2] == ["outer", 0]
        assert outcomes.pop() in (["inner", 0, None], True)


def test_while_one_thread_waits_another_is_served(joined, threads):
    waiting = threads.submit(ask, joined[0], msg.Meet(name="r", timeout_s=60), 60)
    for number in range(3):
        assert ask(joined[0], msg.UserRequest(req="x", info=number)) == msg.UserReply(answer=["x", 0, number])
    assert isinstance(ask(joined[1], msg.Meet(name="r", timeout_s=20)), msg.Met)
    assert isinstance(waiting.result(), msg.Met)


def test_the_wait_for_another_thread_counts(clients, threads):
    join(clients[0], 0)
    long, short = (threads.submit(ask, clients[0], msg.Meet(name=f"within {s}", timeout_s=60), s) for s in (60, 0.5))
    with pytest.raises(CollectiveTimeoutError):
        short.result(30)
    clients[0].close()
    long.exception()  # It ends, by whichever came first.


def test_who_waits_while_the_client_is_closed_is_told(clients, threads):
    join(clients[0], 0)
    waiting = threads.submit(ask, clients[0], msg.Meet(name="r", timeout_s=60), 60)
    ask(clients[0], msg.UserRequest(req="x"))
    clients[0].close()
    with pytest.raises(WorkerLostError, match="closed"):
        waiting.result()


def closed_at(client, number):
    """Close a client in a signal handler in the midst of a request; returns how that ended, None if it came later."""
    try:
        if at_instruction(number, lambda: ask(client, msg.UserRequest(req="x")), client.close, where=CHANNELS):
            return "an answer"
    except WorkerLostError as exc:
        return str(exc)
    return None


def test_a_signal_handler_may_close_the_client_in_the_midst_of_a_request(backend):
    number = 1
    while ended := closed_at(client := backend.connect(), number):
        assert ended == "an answer" or "closed" in ended
        number += 5
        with pytest.raises(WorkerLostError, match="closed"):
            client.request(b"", 1)
    client.close()


def test_a_closed_client_says_so(clients):
    clients[0].close()
    clients[0].close()
    with pytest.raises(WorkerLostError, match="closed"):
        clients[0].request(b"", 1)


def test_the_server_wakes_up_for_other_file_descriptors(tmp_path):
    import os

    server = ZmqServer(f"ipc://{tmp_path}/control")
    readable, writable = os.pipe()
    try:
        os.write(writable, b"x")
        assert server.wait(60, [readable]) == ([], {readable})
    finally:
        server.close()
        os.close(readable)
        os.close(writable)


def test_a_message_without_frames_of_a_request_is_passed_on_as_such(tmp_path):
    import zmq

    server = ZmqServer(f"ipc://{tmp_path}/control")
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"ipc://{tmp_path}/control")
        socket.send_multipart([b"a", b"b", b"c"])
        (received,), _ = server.wait(20)
        assert received == Received(received.peer, b"", b"")
    server.close()


def test_a_worker_whose_messages_nobody_fetches_does_not_hang_in_sending(tmp_path):
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        room = plain.sndhwm
    alive = True
    client = ZmqClient(f"ipc://{tmp_path}/control", lambda: alive)  # where nobody listens
    try:
        for _ in range(room + 1):
            with pytest.raises(CollectiveTimeoutError):
                client.request(b"", 0.0)
        alive = False
        with pytest.raises(WorkerLostError):
            client.request(b"", 20.0)
    finally:
        client.close()


def test_an_address_that_cannot_be_used_is_named(tmp_path):
    for address in (f"ipc://{tmp_path}/missing/control", "nonsense://x"):
        with pytest.raises(ConfigurationError, match=f"cannot listen at '{address}'"):
            ZmqServer(address)
    with pytest.raises(ConfigurationError, match="cannot connect to 'nonsense://x'"):
        ZmqClient("nonsense://x", lambda: True)


class Answering:
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def request(self, data, timeout_s):
        self.asked.append((decode_request(data), timeout_s))
        return encode(self.answers.pop(0))


def test_a_worker_asks_again_while_those_it_waits_for_go_on():
    met = msg.Met(ranks=[0, 1], lost=[])
    channel = Answering(msg.AskAgain(seconds=7.0), msg.AskAgain(seconds=1e9), met)
    call = msg.Barrier(name="b", timeout_s=10.0)
    assert ControlClient(channel, 0).wait_for_all(call, msg.Met) == met
    first, second, third = (request for request, _ in channel.asked)
    assert first == call
    assert second == msg.Barrier(name="b", timeout_s=7.0, patience_s=10.0)
    assert third == msg.Barrier(name="b", timeout_s=10.0, patience_s=10.0)  # never longer than the call may stand still
    assert [timeout_s for _, timeout_s in channel.asked] == [15.0, 12.0, 15.0]
