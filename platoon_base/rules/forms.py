"""Element-wise equations of a rule: NumPy runs them, and the C and CUDA loops are generated."""

from __future__ import annotations

import ast
import collections
import functools
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError

MAX_SCALARS = 8  # The loops in C take at most this many.
COMPILED: dict[str, Form] = {}  # Forms of this package's rules, by name; they have loops in C.

_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
# Loops that exist for every rule.
_KERNELS = {"adopt", "adopt_remembering", "overwrite", "progress", "pull", "take_over"}
# Other names in the loops in C and CUDA.
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
        T Vec Tile LOCK_NS BUFFERS ELEMENT VECTOR n i row scalars count totals keep refused tiles bases first mine flag
        number tile vectors at lane added times
        auto break case char const continue default do double else enum extern float for goto if inline int long
        register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
        """,
    )
)


@dataclass(frozen=True)
class Form:
    """Equations of a rule for one element, as lines ``name := expression``.

    ``x`` is the worker's value, ``c`` the center's; in an outer step ``d`` is the mean progress and
    there is no ``x``. States have the names that the rule declares, other names are temporary.
    Expressions have names, numbers, ``+ - * /`` and parentheses. Every operation is rounded
    separately, which makes NumPy, C and CUDA give the same bits.
    """

    equations: str
    scalars: tuple[str, ...] = ()  # Names of the rule's kernel_args() or step_args().
    # Name of the increment of ``c``, for atomic additions without locks on devices; "" if adding it
    # is not the whole rule, which is then always run under locks.
    adds: str = ""
    name: str = ""
    values: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    center: tuple[str, ...] = ()

    def bound(self, name: str | None, values: tuple[str, ...], local: Iterable[str], center: Iterable[str]) -> Form:
        """Return the form with its rule's names; raise `ConfigurationError` if it is invalid."""
        found = replace(self, name=name or "", values=values, local=tuple(local), center=tuple(center))
        fault = found._fault()
        if fault:
            raise ConfigurationError(f"got the form {self.equations.strip()!r} of the loops {name!r}: {fault}")
        return self if found == self else found

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arrays: values, local states, center states."""
        return (*self.values, *self.local, *self.center)

    @property
    def is_step(self) -> bool:
        """Whether this is the outer step of a rule that waits."""
        return "d" in self.values

    @property
    def guarded(self) -> tuple[str, ...]:
        """Names that must stay finite; otherwise the element is skipped on all sides."""
        return ("c", *self.center)

    @functools.cached_property
    def lines(self) -> tuple[tuple[str, ast.expr], ...]:
        """Names that are set, in order, with their expressions."""
        split = [line.partition(":=") for line in self.equations.strip().splitlines()]
        return tuple((name.strip(), ast.parse(text.strip(), mode="eval").body) for name, _, text in split)

    def run(self, arrays: Iterable[Array], scalars: Iterable[float]) -> None:
        """Apply the equations in place with NumPy, to arrays in the order of `arguments`."""
        given = tuple(arrays)
        number = given[1].dtype.type
        self._in_numpy(number, *given, *map(number, scalars))

    @functools.cached_property
    def _in_numpy(self) -> Callable[..., None]:
        """The equations as a function of the number type, the arrays and the scalars."""
        body = [line for name, node in self.lines for line in _statements(name, node, name in self.arguments)]
        head = f"def run({', '.join(['T', *self.arguments, *self.scalars])}):"
        found: dict[str, Any] = {}
        exec("\n    ".join([head, *body]), {}, found)  # `_fault` admits only names and arithmetic.
        function: Callable[..., None] = found["run"]
        return function

    def in_c(self, product: str = "", number: str = "(T){}") -> tuple[list[tuple[str, str]], dict[str, str]]:
        """Return the equations in C as new variables, and the variable for each array."""
        now: dict[str, str] = {}
        times: collections.Counter[str] = collections.Counter()
        lines = []
        for name, expression in self.lines:
            text = _as_text(expression, now, product, number)
            times[name] += 1
            now[name] = f"{name}_{times[name]}"
            lines.append((now[name], text))
        return lines, {name: now[name] for name in self.arguments if name in now}

    def _fault(self) -> str:
        """Return why this cannot be the form of a rule, and what to do; empty if it can."""
        given = [self.name, *self.arguments, *self.scalars]
        if not self.name.isidentifier() or self.name in _KERNELS | _RESERVED:
            return "declare a kernel beside it, a name in C that no other rule uses"
        if len(set(given)) < len(given) or len(self.scalars) > MAX_SCALARS:
            return f"each name must be different, and there are at most {MAX_SCALARS} scalars; choose others"
        if self.is_step and self.local:
            return "a rule that waits has no local state: workers continue from the center"
        known = set(given[1:])
        for line in self.equations.strip().splitlines():
            name, _, text = (part.strip() for part in line.partition(":="))
            try:
                used = _names_in(ast.parse(text, mode="eval").body)
            except (SyntaxError, ValueError):
                return f"{line.strip()!r} is not a line such as 'd := alpha * (x - c)', of names, numbers and + - * /"
            if used - known:
                return f"{line.strip()!r} needs {', '.join(sorted(used - known))}: set it above, or declare it"
            if name in self.scalars:
                return f"{line.strip()!r} changes a scalar; use another name for the new value"
            known.add(name)
        bad = [n for n in sorted(known) if not _is_name(n)]
        if bad:
            return f"{', '.join(map(repr, bad))} cannot be used as a name in the loops; choose another"
        missing = {*self.guarded} - {name for name, _ in self.lines}
        if missing:
            return f"nothing sets {', '.join(sorted(missing))}: add a line for each"
        return self._fault_of_adds()

    def _fault_of_adds(self) -> str:
        set_c = [_as_text(expression, {}) for name, expression in self.lines if name == "c"]
        if self.adds and (self.center or set_c != [f"c + {self.adds}"]):
            return f"adds={self.adds!r} says that the one change of the center is c := c + {self.adds}; leave it out"
        return ""


def _names_in(node: ast.expr) -> set[str]:
    """Return the names in an expression; raise ValueError if it is not arithmetic."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return set()
    if isinstance(node, (ast.BinOp, ast.UnaryOp)) and isinstance(node.op, (*_SIGNS, ast.USub)):
        return set().union(*map(_names_in, _operands(node)))
    raise ValueError(ast.dump(node))


def _is_name(name: str) -> bool:
    """Return whether a name is valid in Python, C and CUDA and not generated by `Form.in_c`."""
    return bool(re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)) and not (
        re.search(r"_\d+$|_at$|_vector$|^new_", name) or name in _RESERVED or keyword.iskeyword(name)
    )


def _as_text(node: Any, now: Mapping[str, str], product: str = "", number: str = "{}", nested: bool = False) -> str:
    """Return an expression in C or Python, with parentheses around a nested operation."""
    if isinstance(node, ast.Name):
        return now.get(node.id, node.id)
    if isinstance(node, ast.Constant):
        return number.format(node.value)
    calls = bool(product) and isinstance(node.op, ast.Mult)
    parts = [_as_text(each, now, product, number, not calls) for each in _operands(node)]
    if calls:
        return f"{product}({', '.join(parts)})"
    text = f" {_SIGNS[type(node.op)]} ".join(parts) if len(parts) > 1 else f"-{parts[0]}"
    return f"({text})" if nested else text


def _statements(name: str, node: Any, is_array: bool) -> list[str]:
    """Return a line of a form in Python; arrays change in place, with few copies."""
    text = _as_text(node, {}, number="T({})")
    if not is_array:
        return [f"{name} = {text}.copy()" if isinstance(node, ast.Name) else f"{name} = {text}"]
    return _in_place(name, node) or [f"{name}[...] = {text}"]


def _in_place(name: str, node: Any) -> list[str]:
    """Return an operation on its own result as in-place statements, such as ``m *= b``, or []."""
    if not isinstance(node, ast.BinOp):
        return []
    left, right = node.left, node.right
    if isinstance(node.op, (ast.Add, ast.Mult)) and isinstance(right, ast.Name) and right.id == name:
        left, right = right, left
    before = [] if isinstance(left, ast.Name) and left.id == name else _in_place(name, left)
    if name in _names_in(right) or not (before or (isinstance(left, ast.Name) and left.id == name)):
        return []
    return [*before, f"{name} {_SIGNS[type(node.op)]}= {_as_text(right, {}, number='T({})')}"]


def _operands(node: Any) -> list[Any]:
    return [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
