"""Base class of the synchronization rules, and helpers to inspect a rule.

A rule is element-wise and pure: it changes arrays in place and uses no locks, sockets or
frameworks. It can run block by block, and each element stays valid if a crash interrupts an update.
NumPy runs the equations of a rule; the loops in C and CUDA are generated from the same equations
and give the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from types import MethodType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.rules.forms import COMPILED, Form

State = tuple[Array, ...]
_MAX_SETTINGS = 500
_MAX_ARGUMENT = 200
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class LocalState(NamedTuple):
    """Buffer of each worker, shaped like the parameters; ``name`` is its name in the equations."""

    name: str
    # Center state whose values it starts with; by default it remembers the center.
    follows: str = ""


class CenterState(NamedTuple):
    """Buffer beside the center, zero at first unless it is an average of the center."""

    name: str
    # Whether it is kept where a worker overwrites the center; momentum is set to 0 there.
    kept: bool = False
    # Whether it is the average of the center. It starts with the center, is overwritten with it,
    # and is validated, saved and left in the model. A rule has at most one.
    average: bool = False


class Rule:
    """Base class of synchronization rules: derive from it and declare what differs.

    A subclass has a ``form``, or overrides `sync`, which NumPy then runs several times slower. A
    rule of your own that has these members, except ``form``, need not derive from this class.

    Attributes
    ----------
    form : Form or None
        The equations for one element.
    kernel : str or None
        Name of the loops generated from ``form``; None if there is only `sync`.
    local_state : tuple of LocalState or str
        Buffers of each worker; a plain name declares one that remembers the center.
    center_state : tuple of CenterState or str
        Buffers beside the center; a plain name declares momentum.
    period : int
        Default number of batches between synchronizations.
    waits : bool
        Whether all workers wait for each other at each synchronization.
    gossips : bool
        Whether workers send parameters to each other, without a center; see `GoSGD`.
    moments : bool
        Whether adapters also share the optimizer's moments. Of the rules of this package, only
        those that average support it: others could make a second moment negative.

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

    # Member that names the loops, method that runs the form, and names of its values.
    _form_is: ClassVar[tuple[str, str, tuple[str, str]]] = "kernel", "sync", ("x", "c")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_states(cls)
        kernel, method, values = cls._form_is
        if cls.form is not None and "form" in vars(cls):
            cls.form = cls.form.bound(getattr(cls, kernel), values, *names_of(cls))
            if cls.__module__.rpartition(".")[0] == __name__.rpartition(".")[0]:
                COMPILED[cls.form.name] = cls.form
        # The loops of the base class do not run this override.
        elif method in vars(cls) and kernel not in vars(cls):
            setattr(cls, kernel, None)
        declaring = next(base for base in cls.__mro__ if "_form_is" in vars(base))
        if cls.form is None and declaring is not cls and getattr(cls, method) is getattr(declaring, method):
            raise ConfigurationError(
                f"got the rule {cls.__name__} without a form: declare form = Form(...), its equations for one element, "
                f"and {kernel}, a name for its loops; or define {method}, which NumPy runs several times slower"
            )

    def resolved(self, size: int) -> Rule:
        """Return the rule with defaults filled in for ``size`` workers with one center."""
        return self

    def in_job(self, size: int) -> Rule:
        """Return the rule for a job of ``size`` workers in total, on hosts with a center each."""
        return self

    def at_period(self, period: int) -> Rule:
        """Return the rule with defaults that depend on the period, in mini-batches, filled in."""
        return self

    def at_count(self, count: int, before: int = 0) -> Rule:
        """Return the rule for a worker's synchronization number ``count``, from 1 on.

        ``before`` counts the synchronizations of this process in earlier trainings.
        """
        return self

    def shortened(self) -> Rule:
        """Return the rule after a rise of the loss; a rule that scales steps halves the scale."""
        return self

    def notice(self) -> str:
        """Return a message for the user at the start of training; empty for most rules."""
        return ""

    def of_moments(self) -> Rule:
        """Return the rule for shared moments: this rule, or one without states."""
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
    """Stand-in for a rule while a job has one worker; it does not change the worker."""

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
        """Bit masks of the states set to x and of the momenta, local states first."""
        copies = sum(1 << j for j, remembers in enumerate(self._remembering) if remembers)
        copies += 0 if self._average is None else 1 << len(self.local_state) + self._average
        return copies, sum(1 << len(self.local_state) + i for i in self._momenta)

    def resolved(self, size: int) -> Adopt:
        return self

    def of_moments(self) -> Adopt:
        return self._of_moments

    def kernel_args(self) -> tuple[float, ...]:
        return ()

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        # Momentum of a resumed job would move the center once a second worker joins.
        end_momentum([center_state[i] for i in self._momenta], center, local)
        center[...] = local
        if self._average is not None:
            center_state[self._average][...] = local
        for array, remembers in zip(local_state, self._remembering):
            if remembers:
                array[...] = local


def member(rule: Any, name: str, base: type[Rule] = Rule) -> Any:
    """Return a member of a rule, or the default of ``base`` if the rule does not define it."""
    if hasattr(rule, name):
        return getattr(rule, name)
    declared = getattr(base, name)
    return MethodType(declared, rule) if callable(declared) else declared


def require_flag(name: str, value: Any) -> None:
    """Raise `ConfigurationError` unless a rule's argument is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"got {name}={value!r}: it must be True or False")


def number_of(value: object) -> float:
    """Return a rule's argument as a float, or NaN, which is in no range, if it is not a number."""
    return float(value) if isinstance(value, (int, float, np.number)) else np.nan


def require_number(name: str, value: object, within: bool, span: str, advice: str) -> None:
    """Raise `ConfigurationError` unless ``within`` is true; ``span`` names the valid range."""
    if not within:
        raise ConfigurationError(f"got {name}={value!r}: it must be in {span}; leave it out, or try {advice}")


def shares_moments(rule: Any) -> bool:
    """Return whether adapters also share the optimizer's moments by this rule; False for None."""
    return rule is not None and bool(member(rule, "moments"))


def gossips(rule: Any) -> bool:
    """Return whether workers exchange parameters without a center by this rule."""
    return bool(member(rule, "gossips"))


def local_states(rule: Any) -> tuple[LocalState, ...]:
    """Return a rule's local states; a plain name is a state that remembers the center."""
    return tuple(LocalState(state) if isinstance(state, str) else state for state in rule.local_state)


def center_states(rule: Any) -> tuple[CenterState, ...]:
    """Return a rule's center states; a plain name is momentum."""
    return tuple(CenterState(state) if isinstance(state, str) else state for state in rule.center_state)


def names_of(rule: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(state.name for state in local_states(rule)), tuple(state.name for state in center_states(rule))


def local_sources(rule: Any) -> list[int | None]:
    """Return, for each local state, the index of the center state it follows, or None."""
    _, names = names_of(rule)
    return [names.index(state.follows) if state.follows else None for state in local_states(rule)]


def momenta(rule: Any) -> list[int]:
    """Return the indices of the center states reset when a worker overwrites the center."""
    return [i for i, state in enumerate(center_states(rule)) if not (state.kept or state.average)]


def average_of(rule: Any) -> int | None:
    """Return the index of the center state that averages the center, or None."""
    return next((i for i, state in enumerate(center_states(rule)) if state.average), None)


def precise_enough(dtypes: Iterable[Any]) -> bool:
    """Return whether arrays of these dtypes can hold an average; half precision loses its steps."""
    return all(np.dtype(dtype).itemsize >= 4 for dtype in dtypes)


def rule_of_moments(rule: Any) -> Any:
    return member(rule, "of_moments")()


def form_of(rule: Any) -> Form | None:
    """Return the form that a rule's loops are generated from, or None if it has only ``sync``."""
    kernel = member(rule, "kernel")
    if kernel is None:
        return None
    form = rule.form if isinstance(rule, Rule) else None
    if form is None or form.name != kernel:
        form = COMPILED.get(kernel)  # A rule of the user may name loops of this package.
    alike = form is not None and len(rule.local_state) == len(form.local) and len(rule.center_state) == len(form.center)
    return form if alike else None


def end_momentum(momentum: Sequence[Array], center: Array, new: Array) -> None:
    """Zero the momentum of the elements of ``center`` that ``new`` is about to change."""
    if momentum:
        changed = center != new
        for state in momentum:
            np.copyto(state, 0, where=changed)


def require_rule(rule: Any, argument: str = "rule") -> None:
    """Raise `ConfigurationError` unless ``rule`` is a rule; None is not one."""
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
    """Raise `ConfigurationError` unless a rule's states are consistent."""
    own, shared = local_states(rule), {state.name: state.kept for state in center_states(rule)}
    if sum(state.average for state in center_states(rule)) > 1:
        raise ConfigurationError(
            f"got {rule!r} with several averages of the center, and only one can be validated: "
            "declare one as average=True"
        )
    for state in own:
        if state.name in shared:
            raise ConfigurationError(
                f"got a local state and a center state named {state.name!r}, which do not follow "
                f"each other by name alone: declare LocalState('{state.name}_x', "
                f"follows={state.name!r}) and CenterState({state.name!r}, kept=True) if the local "
                "state starts from the center state, else use another name"
            )
        if state.follows and not shared.get(state.follows):
            raise ConfigurationError(
                f"got the local state {state.name!r}, which follows {state.follows!r}: declare "
                f"CenterState({state.follows!r}, kept=True), since otherwise a worker would "
                "restart from a state that ends with the round"
            )


def settings_of(rule: Rule) -> str:
    """Return a rule as text, such as ``EASGD(alpha=0.45)``; empty if it is not a dataclass."""
    return repr(rule)[:_MAX_SETTINGS] if is_dataclass(rule) else ""


def arguments_of(rule: Any) -> dict[str, str]:
    """Return, as text, the arguments of a rule that must be equal on all workers."""
    if is_dataclass(rule):
        found = {f.name: getattr(rule, f.name) for f in fields(rule) if f.repr and not f.metadata.get("per_worker")}
    else:
        found = {name: value for name, value in getattr(rule, "__dict__", {}).items() if not name.startswith("_")}
    if member(rule, "waits") and getattr(rule, "every", 0):
        found["sync_every"] = rule.every
    return {name: _argument_text(value) for name, value in found.items()}


def _argument_text(value: Any) -> str:
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        # 1 and 1.0 are the same argument.
        value = int(value) if float(value).is_integer() else float(value)
    return _ADDRESS.sub("", repr(value))[:_MAX_ARGUMENT]
