"""A coordinator under test: peers ask it, with short names for the requests, and its actions are sorted by peer."""

import itertools
import math

import numpy as np

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import SendReply, StopJob
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.roster import divided_peer, relayed_peer
from platoon_base.hosts import ONE_HOST

SMALL = [("W", (2, 3), "float32")]
LARGE = [("W", (9, 9), "float32")]
CREATE, ATTACH, DONE = msg.CenterRole(create=True), msg.CenterRole(create=False), msg.Done()


class Job:
    """A coordinator, and the peers that ask it; a peer's name is that of the rank it has, after that of its host."""

    def __init__(self, size, seed=0, external=False, world=ONE_HOST):
        self.coordinator = Coordinator(size, seed, external, world)
        self._world = world
        self.now = 100.0
        self._ids = itertools.count()

    def ask(self, peer, request):
        """Send a request of a peer, and return the actions."""
        return self.coordinator.handle(self.named(peer), b"%d" % next(self._ids), request, self.now)

    def named(self, peer):
        """Return the name of a peer's connection."""
        host = self._world.host_of(int(peer)) if self._world.several else 0
        return relayed_peer(host, str(peer).encode()) if host else str(peer).encode()

    def answer(self, peer, request):
        """Send a request of a peer that is answered at once, with nothing else happening."""
        (action,) = self.ask(peer, request)
        assert action.to.peer == self.named(peer)
        return action.reply

    def join(self, *ranks):
        for rank in ranks:
            assert isinstance(self.answer(rank, hello(rank=rank)), msg.Welcome)
        return self

    def tick(self, now, moved=lambda rank: -math.inf):
        self.now = now
        return self.coordinator.tick(now, moved)


def hello(rank=None, protocol=msg.PROTOCOL, host="here"):
    return msg.Hello(protocol=protocol, pid=4711, host=host, device="cpu", rank=rank)


def init(specs=SMALL, rule="EASGD(alpha=0.5)"):
    return msg.InitCenter(specs=specs, rule=rule)


def total(name="epoch", timeout_s=10.0, **pairs):
    return msg.Sum(name=name, pairs=pairs, timeout_s=timeout_s)


def arrays(name="states", timeout_s=10.0, shapes=None, values=()):
    vector = np.asarray(values, "<f8").tobytes()
    return msg.Sum(name=name, timeout_s=timeout_s, vector=vector, shapes=[(len(values),)] if shapes is None else shapes)


def release(timeout_s=10.0, shares=True):
    return msg.ReleaseCenter(stage="drop", shares=shares, timeout_s=timeout_s)


def form_group(note=b"", name="form a group", timeout_s=10.0):
    return msg.FormGroup(name=name, note=note, timeout_s=timeout_s)


def vote(policy, reason="done"):
    return msg.StopVote(reason=reason, policy=policy)


def same(fingerprint, name="the data"):
    return msg.Same(name=name, fingerprint=fingerprint, remedy="Seed the split.")


def replies(actions):
    """Map peers to replies; no peer may have two."""
    sent = [action for action in actions if isinstance(action, SendReply)]
    found = {divided_peer(action.to.peer)[1].decode(): action.reply for action in sent}
    assert len(found) == len(sent)
    return found


def stops(actions):
    return [action.reason for action in actions if isinstance(action, StopJob)]


def require_failure(reply, kind, *words):
    assert isinstance(reply, msg.Failure)
    assert reply.kind == kind
    for word in words:
        assert word in reply.message


def share(job, *ranks, request=None):
    for number, rank in enumerate(ranks):
        assert job.answer(rank, request or init()) == (ATTACH if number else CREATE)
        if not number:
            job.ask(rank, msg.CenterReady())
