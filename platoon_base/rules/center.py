"""Synchronization rules: how a worker's parameters and the shared center change each other.

A rule is element-wise and pure: arrays in, arrays changed, no lock, socket or framework inside. It may therefore
run block by block and stripe by stripe, and an update torn by a crash is still a valid one, element by element.

A rule is one declaration, a class that derives from `Rule`: its states with their roles, and its equations for one
element, from which NumPy runs it and the loops in C and CUDA are made. All forms give the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from types import MethodType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules.forms import COMPILED, Form

__all__ = [
    "Adopt", "Array", "CenterState", "LocalState", "Rule", "State", "arguments_of", "average_of",
    "center_states", "end_momentum",
    "form_of", "gossips", "local_sources", "local_states", "member", "momenta", "names_of", "number_of",
    "precise_enough", "require_flag", "require_number", "require_rule", "require_states", "rule_of_moments",
    "settings_of", "shares_moments",
]  # fmt: skip

Array = np.ndarray[Any, Any]
State = tuple[Array, ...]
_MAX_SETTINGS = 500
_MAX_ARGUMENT = 200
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class LocalState(NamedTuple):
    """A buffer that each worker keeps for its rule, shaped like the parameters.

    Attributes
    ----------
    name : str
        As in the rule's equations.
    follows : str
        The center state whose values it starts with; by default it remembers the center, and starts with its values.
    """

    name: str
    follows: str = ""


class CenterState(NamedTuple):
    """A buffer that lies beside the center, started with zeros.

    Attributes
    ----------
    name : str
        As in the rule's equations.
    kept : bool
        Whether it stays where a worker overwrites the center. By default it is momentum, and becomes 0 wherever the
        center is given another value; see `end_momentum`.
    average : bool
        Whether it is an average of the center, started with its values, and set to what a worker overwrites the center
        with. It is what is validated, saved, and left in the model. A rule has one at most.
    """

    name: str
    kept: bool = False
    average: bool = False


class Rule:
    """A synchronization rule: derive from it, and declare what differs.

    A class that derives from it has a ``form``, or a `sync` of its own, which NumPy runs several times slower. A rule
    of the user's own may also have these members, but for a form, without deriving from it.

    Attributes
    ----------
    form : Form or None
        The rule for one element.
    kernel : str or None
        Name of the loops that are made from ``form``; None if there is only `sync`.
    local_state : tuple of LocalState
        What each worker keeps for the rule; a name alone is that of one which remembers the center.
    center_state : tuple of CenterState
        What lies beside the center; a name alone is that of momentum.
    period : int
        Batches from one synchronization to the next where the user does not say.
    waits : bool
        Whether workers wait for one another at each synchronization; see `platoon_base.rules.outer`.
    gossips : bool
        Whether workers send their parameters to one another, and there is no center; see `GoSGD`.
    moments : bool
        Whether the adapters share the moments of the optimizers by it too. Of the rules of this package those can that
        only average: others would carry a second moment below 0.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Halfway(Rule):
    ...     kernel: ClassVar = "halfway"
    ...     form: ClassVar = Form("c := c + (x - c) / 2")
    """

    form: ClassVar[Form | None] = None
    kernel: ClassVar[str | None] = None
    local_state: ClassVar[tuple[LocalState | str, ...]] = ()
    center_state: ClassVar[tuple[CenterState | str, ...]] = ()
    period: ClassVar[int] = 10
    waits: ClassVar[bool] = False
    gossips: ClassVar[bool] = False
    moments: bool = False

    # Which member names the loops of the form, which method runs it, and its values.
    _form_is: ClassVar[tuple[str, str, tuple[str, str]]] = "kernel", "sync", ("x", "c")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_states(cls)
        kernel, method, values = cls._form_is
        if cls.form is not None and "form" in vars(cls):
            cls.form = cls.form.bound(getattr(cls, kernel), values, *names_of(cls))
            if cls.__module__.rpartition(".")[0] == __name__.rpartition(".")[0]:
                COMPILED[cls.form.name] = cls.form
        elif method in vars(cls) and kernel not in vars(cls):  # the loops of the class above do something else
            setattr(cls, kernel, None)
        declaring = next(base for base in cls.__mro__ if "_form_is" in vars(base))
        if cls.form is None and declaring is not cls and getattr(cls, method) is getattr(declaring, method):
            raise ConfigurationError(
                f"got the rule {cls.__name__} without a form: declare form = Form(...), its equations for one element, "
                f"and {kernel}, a name for its loops; or define {method}, which NumPy runs several times slower"
            )

    def resolved(self, size: int) -> Rule:
        """Return the rule with its defaults filled in for ``size`` workers with one center; most rules have none."""
        return self

    def in_job(self, size: int) -> Rule:
        """Return the rule for a job of ``size`` workers on all hosts, each of which has a center; few rules differ."""
        return self

    def at_period(self, period: int) -> Rule:
        """Return the rule with those defaults filled in that go by its period in mini-batches; most rules have none."""
        return self

    def at_count(self, count: int, before: int = 0) -> Rule:
        """Return the rule for the synchronization of this number, from 1 on, of a worker; most rules do not count.

        ``before`` were made by this process in earlier trainings.
        """
        return self

    def shortened(self) -> Rule:
        """Return the rule for a training whose loss has risen: one that lengthens steps does so by half as much."""
        return self

    def notice(self) -> str:
        """Return what users should be told when a training begins; empty for most rules."""
        return ""

    def of_moments(self) -> Rule:
        """Return the rule for the moments that are shared beside the parameters: this one, or one without states."""
        return self

    def kernel_args(self) -> tuple[float, ...]:
        """Return the scalars of the form."""
        return ()

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Apply the rule once, in place.

        Parameters
        ----------
        local, center : ndarray, shape (n,), same float dtype
        local_state, center_state : tuple of ndarray, each of shape (n,)
        """
        form: Any = self.form
        form.run((local, center, *local_state, *center_state), self.kernel_args())


class Adopt:
    """Stands in for a rule while a job has one worker, so that this worker trains as the plain script does.

    ::

        m := 0 where c != x       (momentum: a center state that no local state follows)
        c := x
        a := x                    (if the rule has an average of the center)
        x_old := x                (if the rule remembers the center)

    The center is for checkpoints and for workers that join late. When one has joined, the rule takes over. Local states
    that follow a center state stay what they are, as that one does. Momentum that a resumed job has brought along would
    carry the center off once a second worker joins: it has nothing to do with where the center is by then.

    Parameters
    ----------
    rule : Rule
        The rule that it stands in for. Its local state is kept up to date.
    """

    kernel: str
    local_state: tuple[LocalState, ...]
    center_state: tuple[CenterState, ...]

    def __init__(self, rule: Rule) -> None:
        self.local_state, self.center_state = local_states(rule), center_states(rule)
        self._remembering = [source is None for source in local_sources(rule)]
        self._momenta, self._average = momenta(rule), average_of(rule)
        of_moments = rule_of_moments(rule)
        self._of_moments = self if of_moments is rule else Adopt(of_moments)
        copies = any(self._remembering) or self._average is not None
        self.kernel = "adopt_remembering" if copies else "adopt"

    @property
    def sets(self) -> tuple[int, int]:
        """The states that become x, and the momenta, as sets of bits: bit j is state j, the local ones first."""
        copies = sum(1 << j for j, remembers in enumerate(self._remembering) if remembers)
        copies += 0 if self._average is None else 1 << len(self.local_state) + self._average
        return copies, sum(1 << len(self.local_state) + i for i in self._momenta)

    def resolved(self, size: int) -> Adopt:
        """Return the rule itself: it has no parameter."""
        return self

    def of_moments(self) -> Adopt:
        """Return what stands in for the rule of the moments."""
        return self._of_moments

    def kernel_args(self) -> tuple[float, ...]:
        """Return ``()``."""
        return ()

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Apply the equations above in place."""
        end_momentum([center_state[i] for i in self._momenta], center, local)
        center[...] = local
        if self._average is not None:
            center_state[self._average][...] = local
        for array, remembers in zip(local_state, self._remembering):
            if remembers:
                array[...] = local


def member(rule: Any, name: str, base: type[Rule] = Rule) -> Any:
    """Return a member of a rule; what a rule of the user's own leaves out is as ``base`` declares it."""
    if hasattr(rule, name):
        return getattr(rule, name)
    declared = getattr(base, name)
    return MethodType(declared, rule) if callable(declared) else declared


def require_flag(name: str, value: Any) -> None:
    """Raise `ConfigurationError` unless a rule's argument is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"got {name}={value!r}: it must be True or False")


def number_of(value: object) -> float:
    """Return a rule's argument as a float; NaN, which is in no range, if it is no number."""
    return float(value) if isinstance(value, (int, float, np.number)) else np.nan


def require_number(name: str, value: object, within: bool, span: str, advice: str) -> None:
    """Raise `ConfigurationError` unless a rule's argument is within its range, which ``span`` names."""
    if not within:
        raise ConfigurationError(f"got {name}={value!r}: it must be in {span}; leave it out, or try {advice}")


def shares_moments(rule: Any) -> bool:
    """Return whether adapters share the moments of the optimizers by this rule too; False for None."""
    return rule is not None and bool(member(rule, "moments"))


def gossips(rule: Any) -> bool:
    """Return whether workers send their parameters to one another by this rule, without a center."""
    return bool(member(rule, "gossips"))


def local_states(rule: Any) -> tuple[LocalState, ...]:
    """Return the declarations of a rule's local states; a name alone remembers the center."""
    return tuple(LocalState(state) if isinstance(state, str) else state for state in rule.local_state)


def center_states(rule: Any) -> tuple[CenterState, ...]:
    """Return the declarations of a rule's center states; a name alone is momentum."""
    return tuple(CenterState(state) if isinstance(state, str) else state for state in rule.center_state)


def names_of(rule: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a rule's local states, and those of its center states."""
    return tuple(state.name for state in local_states(rule)), tuple(state.name for state in center_states(rule))


def local_sources(rule: Any) -> list[int | None]:
    """Return for each local state the index of the center state that it starts with; None for the center's values."""
    _, names = names_of(rule)
    return [names.index(state.follows) if state.follows else None for state in local_states(rule)]


def momenta(rule: Any) -> list[int]:
    """Return the indices of the center states that end where a worker overwrites the center."""
    return [i for i, state in enumerate(center_states(rule)) if not (state.kept or state.average)]


def average_of(rule: Any) -> int | None:
    """Return the index of the center state that is the average of the center; None if the rule has none."""
    return next((i for i, state in enumerate(center_states(rule)) if state.average), None)


def precise_enough(dtypes: Iterable[Any]) -> bool:
    """Return whether arrays of these dtypes can have an average: its steps would be lost in half precision."""
    return all(np.dtype(dtype).itemsize >= 4 for dtype in dtypes)


def rule_of_moments(rule: Any) -> Any:
    """Return the rule by which moments are shared beside the parameters."""
    return member(rule, "of_moments")()


def form_of(rule: Any) -> Form | None:
    """Return the form from which the loops of a rule are made; None if it has only its ``sync``."""
    kernel = member(rule, "kernel")
    if kernel is None:
        return None
    form = rule.form if isinstance(rule, Rule) else None
    if form is None or form.name != kernel:
        form = COMPILED.get(kernel)  # a rule of the user's own may name loops of this package
    alike = form is not None and len(rule.local_state) == len(form.local) and len(rule.center_state) == len(form.center)
    return form if alike else None


def end_momentum(momentum: Sequence[Array], center: Array, new: Array) -> None:
    """Set momentum to 0 wherever ``center`` is about to be given a ``new`` value that no synchronization led to."""
    if momentum:
        changed = center != new
        for state in momentum:
            np.copyto(state, 0, where=changed)


def require_rule(rule: Any, argument: str = "rule") -> None:
    """Raise `ConfigurationError` unless ``rule`` is a rule.

    Parameters
    ----------
    rule : Rule
        The user's argument; None is no rule.
    argument : str
        Name of the argument, for the error.
    """
    if isinstance(rule, type) or type(rule) is Rule or not callable(getattr(rule, "resolved", None)):
        raise ConfigurationError(f"got {argument}={rule!r}: pass a rule, such as EASGD() or ASGD()")
    if not isinstance(rule, Rule):
        required = ("local_state", "center_state", "step" if member(rule, "waits") else "sync")
        missing = [name for name in required if not hasattr(rule, name)]
        if missing:
            raise ConfigurationError(
                f"got {argument}={rule!r} without {', '.join(missing)}: derive its class from platoon_base.rules.Rule, "
                "and declare a form, or define what is missing"
            )
        require_states(rule)


def require_states(rule: Any) -> None:
    """Raise `ConfigurationError` unless the states of a rule go together."""
    own, shared = local_states(rule), {state.name: state.kept for state in center_states(rule)}
    if sum(state.average for state in center_states(rule)) > 1:
        raise ConfigurationError(
            f"got {rule!r} with several averages of the center: what is validated is one; declare one as average=True"
        )
    for state in own:
        if state.name in shared:
            raise ConfigurationError(
                f"got a local state and a center state named {state.name!r}: names have no meaning; declare "
                f"LocalState('{state.name}_x', follows={state.name!r}) and CenterState({state.name!r}, kept=True) if "
                "the one starts with the other, else give it another name"
            )
        if state.follows and not shared.get(state.follows):
            raise ConfigurationError(
                f"got the local state {state.name!r}, which follows {state.follows!r}: declare "
                f"CenterState({state.follows!r}, kept=True), since a worker would go back with what ends"
            )


def settings_of(rule: Rule) -> str:
    """Return a rule with its arguments as text, such as ``EASGD(alpha=0.45)``; empty if the rule does not tell them."""
    return repr(rule)[:_MAX_SETTINGS] if is_dataclass(rule) else ""


def arguments_of(rule: Any) -> dict[str, str]:
    """Return the arguments of a rule that must be the same on all workers, by name, as text.

    These are the fields of a dataclass that its text shows, or the public attributes of another object. A field with
    ``metadata={"per_worker": True}`` may differ. Rules that wait also have the period that an adapter has given them.
    """
    if is_dataclass(rule):
        found = {f.name: getattr(rule, f.name) for f in fields(rule) if f.repr and not f.metadata.get("per_worker")}
    else:
        found = {name: value for name, value in getattr(rule, "__dict__", {}).items() if not name.startswith("_")}
    if member(rule, "waits") and getattr(rule, "every", 0):
        found["sync_every"] = rule.every
    return {name: _argument_text(value) for name, value in found.items()}


def _argument_text(value: Any) -> str:
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        value = int(value) if float(value).is_integer() else float(value)  # 1 and 1.0 are the same argument
    return _ADDRESS.sub("", repr(value))[:_MAX_ARGUMENT]
