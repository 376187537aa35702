"""One training as a state machine, by any order of events, without a framework and without a job."""

import contextlib
import random
from types import SimpleNamespace

import pytest

from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.rules import ASGD, EASGD, DiLoCo
from platoon_base.schedule import votes_suffice
from platoon_base.worker import Fit

pytestmark = pytest.mark.base

SHARED = ("evaluate", "fail in an evaluation", "set values in the center", "pause")
OWN = ("step", "vote", "save in the center", "enter and leave", "fail while saving")


class Handle:
    """The calls of a `Worker` that a fit makes, on one number and a center that nobody else changes."""

    late = should_stop = is_lost = False

    def __init__(self, rank=0, rule=None, overlap=False):
        self.global_rank, self.rule, self.overlap = rank, rule, overlap
        self.resume_at = SimpleNamespace(steps=0)
        self.value, self.center, self.in_center, self.votes = float(rank), -1.0, False, 0
        self.calls, self.met, self.parts, self.starts = [], [], [], 1
        self.advanced = self  # its names are those of `Advanced` too
        self.stop_votes = self
        self.shares, self.number, self.round_under_way = rule is not None, 1, False

    def together(self, name):
        self.met.append(name)

    @property
    def shared(self):
        return self if self.shares else None

    def served(self):
        return self.shared

    def sync(self, arrays=None, part=1.0, whole=False, timeout_s=0):
        assert not self.in_center, "a synchronization inside an evaluation"
        self.calls.append("sync")
        self.parts.append(part)
        if isinstance(self.rule, DiLoCo):
            self.together("round")
            self.round_under_way = self.overlap and not whole
        self.center = self.value

    def complete_round(self, arrays=None, timeout_s=0):
        assert not self.in_center
        self.calls.append("complete")
        self.round_under_way = False

    def enter_center(self, timeout_s=0):
        assert self.shares
        own, self.value, self.in_center = self.value, self.center, True

        def leave(keep):
            self.in_center = False
            if not keep:
                self.value = own
            if self.is_lost:
                raise PlatoonError("lost")

        return leave

    @contextlib.contextmanager
    def center_params(self, timeout_s=0):
        leave = self.enter_center() if self.shares else lambda keep: None
        try:
            yield
        finally:
            leave(False)

    def average_hosts(self, timeout_s=0):
        self.together("hosts")
        self.center += 0.25  # Other hosts' steps.

    def copy_to_local(self, timeout_s=0):
        assert self.shares
        self.value = self.center

    def copy_to_global(self, timeout_s=0):
        assert self.shares
        self.center = self.value

    def release_shared_params(self, timeout_s=0):
        self.together("release")
        self.shares = False

    def cast(self):
        self.votes += 1

    def voters(self):
        return {self.global_rank} if self.votes else set()

    def passed(self, policy, ranks):
        return votes_suffice(policy, self.voters(), ranks)


class Marked(Fit):
    """A fit that sees which values the script sets."""

    def marks(self):
        return self.worker.value


def fit_of(rule=None, every_n=3, rank=0, cls=Marked, overlap=False):
    fit = cls(Handle(rank, rule, overlap))
    fit.begin(rule, every_n)
    return fit


def meet(fit):
    fit.worker.together("meet")
    return [0, 1, 2]


def train(fit, steps=1):
    for _ in range(steps):
        fit.worker.value += 1
        fit.step()


def play(fit, event):
    """Make an event, and require what must hold after it."""
    worker = fit.worker
    before = worker.value
    changed = before
    if event == "step":
        train(fit)
        changed = before + 1
    elif event == "vote":
        fit.vote()
    elif event == "save in the center":
        with fit.center():
            assert worker.value == (worker.center if worker.shares else before)
    elif event == "fail while saving":
        with pytest.raises(OSError, match="told"), fit.center():
            raise OSError("told")
    elif event == "enter and leave":
        fit.enter()
        fit.enter()
        fit.leave()
    elif event == "evaluate":
        with fit.evaluation(lambda: meet(fit)) as begun:
            assert begun
            assert worker.met[-2:] == ["meet", "hosts"]
            assert worker.value == (worker.center if worker.shares else before)
            with fit.center():
                assert worker.value == (worker.center if worker.shares else before)
    elif event == "fail in an evaluation":
        with pytest.raises(OSError, match="told"), fit.evaluation(lambda: meet(fit)):
            raise OSError("told")
    elif event == "set values in the center":
        with fit.evaluation(lambda: meet(fit)):
            worker.value = changed = 1000.0 + worker.value
        assert not worker.shares or worker.center == changed
    elif event == "pause":
        fit.evaluation_begins(lambda: meet(fit))
        fit.end()
        assert not worker.shares
        worker.shares, worker.starts = fit.rule is not None, worker.starts + 1
        fit.begin(fit.rule, fit.every_n)
        changed = worker.center if worker.shares else before
    # With a rule that waits all workers go on from the center after an evaluation.
    assert worker.value == (worker.center if event == "evaluate" and fit.in_rounds else changed)
    assert not worker.in_center
    assert worker.votes <= worker.starts, "a vote twice in one start"


RULES = {"a rule": EASGD(), "one that waits": DiLoCo(), "one that overlaps": DiLoCo(overlap=0.5), "averages": None}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_events_keeps_the_promises(name, seed):
    """Values come back, nothing is synchronized inside an evaluation, and all make the same calls together."""
    rng, rule = random.Random(seed), RULES[name]
    always = type("Always", (Marked,), {"syncs_at_evaluations": bool(seed % 2)})
    fits = [fit_of(rule, rank=rank, cls=always, overlap=name.endswith("overlaps")) for rank in range(3)]
    waits = isinstance(rule, DiLoCo)
    for _ in range(12):
        steps = rng.randrange(8)
        for fit in fits:
            events = rng.choices(OWN[1:], k=rng.randrange(4)) + ["step"] * (steps if waits else rng.randrange(8))
            for event in rng.sample(events, len(events)):
                play(fit, event)
        shared = rng.choice(SHARED)
        for fit in fits:
            play(fit, shared)
        assert fits[0].worker.met == fits[1].worker.met == fits[2].worker.met
    for fit in fits:
        assert fit.end(lambda fit=fit: meet(fit))
        assert fit.worker.value == fit.worker.center or rule is None
    assert fits[0].worker.met == fits[1].worker.met == fits[2].worker.met


def test_a_step_synchronizes_after_each_period():
    fit = fit_of(EASGD(), every_n=3)
    last = []
    for _ in range(7):
        last.append(fit.is_last_step)
        train(fit)
    assert last == [False, False, True, False, False, True, False]
    assert fit.worker.calls == ["sync"] * 2
    fit.step(4)  # Several steps in one call of the framework.
    assert fit.worker.calls == ["sync"] * 3
    train(fit)
    assert fit.worker.calls == ["sync"] * 4
    assert fit.synced


def test_the_part_of_a_period_is_that_since_the_last_synchronization():
    fit = fit_of(DiLoCo(), every_n=4)
    train(fit, 5)
    fit.synchronize(whole=True)
    assert fit.worker.parts == [1.0, 0.25]
    other = fit_of(DiLoCo(), every_n=None)  # Its adapter decides when, so the longest interval counts.
    for steps in (4, 2, 8):
        train(other, steps)
        other.synchronize()
    assert other.worker.parts == [1.0, 0.5, 1.0]


def test_a_period_begins_anew_at_an_evaluation():
    fit = fit_of(DiLoCo(), every_n=4)
    train(fit, 3)
    with fit.evaluation(lambda: meet(fit)):
        pass
    train(fit, 3)
    assert fit.worker.parts == [0.75]
    train(fit)
    assert fit.worker.parts == [0.75, 1.0]


def test_a_round_that_overlaps_is_completed_in_its_period():
    fit = fit_of(DiLoCo(overlap=0.5), every_n=4, overlap=True)
    train(fit, 5)
    assert fit.worker.calls == ["sync"]
    train(fit)
    assert fit.worker.calls == ["sync", "complete"]


@pytest.mark.parametrize(
    ("rule", "always", "steps", "found"),
    [
        (EASGD(), False, 5, 1),
        (EASGD(), False, 2, 1),
        (EASGD(), True, 5, 2),
        (EASGD(), True, 3, 1),  # The center has the latest step already.
        (EASGD(), False, 0, 0),
        (DiLoCo(), False, 3, 2),
    ],
)
def test_an_evaluation_begins_with_the_latest_steps(rule, always, steps, found):
    """If the rule waits, if the center has none of them, or at each end of an epoch."""
    fit = fit_of(rule, cls=type("Fit", (Fit,), {"syncs_at_evaluations": always}))
    train(fit, steps)
    with fit.evaluation(lambda: meet(fit)):
        assert len(fit.worker.calls) == found
    fit.end(lambda: meet(fit))
    # What was evaluated is the result; with a rule that waits the others may have trained since.
    assert len(fit.worker.calls) == found + isinstance(rule, DiLoCo)
    assert fit.worker.met[-3:] == ["meet", "hosts", "release"]


def test_the_latest_steps_are_in_the_result():
    fit = fit_of(ASGD(), every_n=100)
    train(fit, 5)
    assert fit.end(lambda: meet(fit))
    assert fit.worker.value == 5.25  # with those of other hosts
    assert not fit.synced, "while it trained"


def test_parameters_that_the_script_shares_are_left_alone():
    fit = fit_of(None)
    fit.worker.shares, fit.worker.center = True, 7.0
    train(fit, 2)
    with fit.evaluation(lambda: meet(fit)):
        assert fit.worker.value == fit.worker.center, "loops that synchronize by themselves evaluate the center"
    assert fit.end(lambda: meet(fit))
    assert (fit.worker.value, fit.worker.calls, fit.worker.shares) == (2.0, [], True)


def test_a_period_that_is_never_reached_gives_one_warning(caplog):
    fit = fit_of(EASGD(), every_n=100)
    for _ in range(3):
        train(fit, 2)
        with fit.evaluation(lambda: meet(fit)):
            pass
    assert caplog.text.count("2 batches preceded an evaluation, so every_n_batches=100 is never reached") == 1


def test_who_has_to_end_makes_no_further_call():
    fit = fit_of(EASGD())
    train(fit)
    with fit.evaluation(lambda: None) as begun:
        assert not begun
    assert fit.worker.met == []
    assert not fit.end(lambda: None)
    assert fit.worker.shares


def test_a_synchronization_inside_an_evaluation_is_refused():
    fit = fit_of(EASGD(), every_n=1)
    with fit.evaluation(lambda: meet(fit)), pytest.raises(ConfigurationError, match="during an evaluation"):
        fit.step()


def test_an_evaluation_within_another_goes_on_in_the_center():
    fit = fit_of(EASGD(), every_n=1)
    own = fit.worker.value
    with fit.evaluation(lambda: meet(fit)):
        with fit.evaluation(lambda: meet(fit)):
            pass
        assert (fit.in_center, fit.worker.value) == (True, fit.worker.center)
    assert (fit.in_center, fit.worker.value) == (False, own)


def test_the_rest_evaluate_the_rows_of_a_worker_that_left():
    fit = fit_of(EASGD(), rank=2)
    parts = []
    with fit.evaluation(lambda: meet(fit)):
        answers = iter([("in vain", [0, 2]), ("done", [0, 2])])
        assert fit.evaluate(lambda i, n: parts.append((i, n)), lambda _, ranks: next(answers)) == "done"
    assert parts == [(2, 3), (1, 2)]
    assert fit.ranks == [0, 2]


def test_a_vote_is_cast_once_and_again_in_a_new_start():
    fit = fit_of(EASGD())
    assert not fit.vote(False)
    fit.ranks = [0, 1]
    assert fit.vote()
    assert fit.vote()
    assert fit.worker.votes == 1
    fit.begin(EASGD(), 3)
    assert fit.worker.votes == 2
    assert not fit.decide({0: False, 1: False}, ends=False)
    assert fit.decide({0: False, 1: True}, ends=False)
    assert fit.decide({0: False}, ends=True)
    assert fit.ranks == [0]


@pytest.mark.parametrize("hook", ["values_changed", "marks"])
def test_own_values_are_back_if_a_hook_fails_in_the_center(monkeypatch, hook):
    fit = fit_of(EASGD())
    train(fit, 2)

    def fail(self):
        if self.worker.in_center:
            raise OSError("told")

    with monkeypatch.context() as patched:
        patched.setattr(Marked, hook, fail)
        with pytest.raises(OSError, match="told"), fit.evaluation(lambda: meet(fit)):
            pass
    assert (fit.worker.value, fit.in_center) == (2.0, False)
    train(fit, 3)


def test_an_abandoned_training_leaves_the_center_in_the_model():
    fit = fit_of(EASGD())
    train(fit, 2)
    fit.evaluation_begins(lambda: meet(fit))
    evaluated = fit.worker.value
    Fit.abandon(fit.worker)
    Fit.abandon(fit.worker)
    assert fit.worker.value == evaluated
    assert not fit.worker.in_center


def test_own_values_are_back_at_exit_even_if_one_worker_is_lost(monkeypatch):
    registered = []
    monkeypatch.setattr("atexit.register", registered.append)
    fits = [fit_of(EASGD(), rank=rank) for rank in range(2)]
    fits[0].worker.is_lost = True
    for fit in fits:
        train(fit)
        fit.enter()
    registered[-1]()
    assert [fit.worker.value for fit in fits] == [1.0, 2.0]
    assert not any(fit.in_center for fit in fits)
