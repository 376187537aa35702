"""A deputy and what its first host sends, which is the test: what comes in one go, too late, or never."""

import contextlib
import os
import signal

import pytest
from watching import until

from platoon_base.checkpoints.files import About
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.hosts import Place, World
from platoon_base.job.files import Origin
from platoon_base.links.peer import LinkServer
from platoon_base.multihost import messages as between
from platoon_base.multihost.addresses import read_or_make_key
from platoon_base.multihost.deputy import host_deputy
from platoon_base.multihost.rendezvous import RendezvousInterruptedError, arrive, introduction
from platoon_base.system.process import awake
from platoon_base.timeouts import adopt, change
from platoon_base.worker_process.program import Program

pytestmark = pytest.mark.base


class First:
    def __init__(self, link):
        self.link = link
        self.received = []

    def until(self, kind, link):
        """Wait until a message of this kind has come by the link of another host, and return it."""
        until(lambda: any(isinstance(each, kind) for each in self.received), step=lambda: self.step(link))
        return [each for each in self.received if isinstance(each, kind)][-1]

    def until_received(self, message):
        """Wait for a message by a link that its host closes."""
        until(lambda: message in self.received, step=self.step)

    def step(self, link=None):
        """Take what has come; the other host takes what has come by its link, too."""
        self.link.poll(0.01)
        self.received += [between.decode_up(body) for _, body in self.link.receive()]
        if link is not None:
            link.receive()
            for end in (self.link, link.peer):
                end.tick(awake())

    def send(self, *messages):
        (peer,) = self.link.peers.values()
        for message in messages:
            peer.send(between.encode(message))


@pytest.fixture
def first(tmp_path, monkeypatch):
    monkeypatch.setenv("PLATOON_KEY_FILE", str(tmp_path / "key"))
    found = First(LinkServer("127.0.0.1", 0, read_or_make_key()))
    yield found
    found.link.close()


@pytest.fixture
def lost_after_a_second():
    """Change the timeouts of this process, as a welcome does that brings those of the job."""
    change(os.environ, ["host=1", "silence=1"])
    yield
    adopt(os.environ, "")


@contextlib.contextmanager
def arrived(first):
    """Connect a host with one worker; gives its link, what waits for a welcome, and its signals."""
    here = introduction(Place(2, 1, "a test"), ["cpu"], "program")
    with StopSignals() as signals, arrive(lambda: first.link.address, here, signals, str) as (link, welcome):
        first.until(between.Arrive, link)
        yield link, welcome, signals


def welcome_to(job):
    world = World([1, 1], 1, [os.uname().nodename] * 2, ["127.0.0.1"] * 2, "")
    return between.Welcome(world, job, "logs")


@contextlib.contextmanager
def deputy_of(link, welcome, tmp_path):
    with host_deputy(link, welcome, Origin(["script.py"], ["cpu"], str(tmp_path))) as deputy:
        deputy.start(Program("script.py"), [], [], [])
        yield deputy


def test_a_welcome_that_comes_with_the_end_of_the_job_before_is_not_lost(first, tmp_path):
    with arrived(first) as (link, welcome, signals):
        first.send(welcome_to("one"))
        with deputy_of(link, welcome(), tmp_path) as deputy:
            assert first.until(between.Begun, link).job == "one"
            stop = between.JobState("the next job has been told to stop", (1, 1), 0, False)
            first.send(between.JobOver(1, "again", again=True), welcome_to("two"), stop)
            until(lambda: len(link.inbox) == 3, step=lambda: (link.poll(0.01), link.receive()))
            assert deputy.serve(signals).again
        again = welcome()
        assert again.job == "two"
        assert between.decode_down(link.inbox[0]) == stop


def test_a_signal_between_two_jobs_reaches_the_first_host(first):
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(RendezvousInterruptedError))
        _, welcome, _ = stack.enter_context(arrived(first))
        os.kill(os.getpid(), signal.SIGTERM)
        welcome()
    first.until_received(between.Signalled(signal.SIGTERM, 1))


def test_a_launcher_that_fails_says_why(first, tmp_path):
    with pytest.raises(OSError, match="disk"), arrived(first) as (_, _, _):
        raise OSError("no room on the disk")
    first.until_received(between.Failed("OSError: no room on the disk"))


def test_what_comes_with_a_welcome_is_for_its_job(first, tmp_path):
    with arrived(first) as (link, welcome, signals):
        first.send(welcome_to("one"), between.JobOver(3, "enough"))
        with deputy_of(link, welcome(), tmp_path) as deputy:
            assert deputy.serve(signals).status == 3


def test_a_first_host_that_is_silent_for_its_timeout_is_lost(first, tmp_path, lost_after_a_second):
    with arrived(first) as (link, welcome, signals):
        first.send(welcome_to("one"))
        with deputy_of(link, welcome(), tmp_path) as deputy:
            began = awake()
            over = deputy.serve(signals)
    assert awake() - began < 8
    assert "sent no heartbeat for 1." in over.text


def test_a_checkpoint_with_much_that_workers_keep_arrives(first, tmp_path, caplog, lost_after_a_second):
    kept = {rank: {"state": os.urandom(200_000)} for rank in range(200)}
    saved = between.SavedState(About(seed=0, size=200, seconds=1.0, kept=kept), str(tmp_path / "saved"))
    with arrived(first) as (link, welcome, signals):
        first.send(welcome_to("one"))
        with deputy_of(link, welcome(), tmp_path) as deputy:
            (peer,) = first.link.peers.values()
            peer.send(between.encode(saved), bulk=True)
            until(lambda: link.inbox, step=lambda: first.step(link))
            assert deputy.serve(signals).text.startswith("host 0 of the job is lost")
    assert f"Resume from {saved.folder}" in caplog.text


def test_a_host_that_was_replaced_ends(first, tmp_path):
    with arrived(first) as (link, welcome, signals):
        first.send(welcome_to("one"))
        with deputy_of(link, welcome(), tmp_path) as deputy:
            first.until(between.Begun, link)
            (peer,) = first.link.peers.values()
            first.link.forget(peer)
            until(lambda: link.dismissed, step=lambda: (link.poll(0.01), link.receive(), first.link.receive()))
            assert deputy.serve(signals).text == "the job continues without this host, which was replaced"
