"""Generator of the C loops of the rules; run this module after a form has changed."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from platoon_base.dtypes import C_TYPES
from platoon_base.rules.forms import COMPILED, Form

HEADER = Path(__file__).parents[1] / "_rules.h"

_TOP = """\
/* Made by `python -m platoon_base.centers.host_source` from the forms of rules/: change these, not this file.
 *
 * Included by _kernels.c, which says what the rows of a table are.
 */
"""
_LOOPS = Template("""
$how static int ${name}_piece_$T(
    $declared, int64_t n$scalars)
{
    BITS_$T refused = 0;
    for (int64_t i = 0; i < n; i++) {
        $equations
        BITS_$T keep = -(BITS_$T)($finite);
        refused |= ~keep;
        $stores
    }
    return refused != 0;
}

static int64_t ${name}_$T(const int64_t *row, const double *scalars)
{
    $unpack
    (void)scalars;
    if (!${name}_piece_$T($passed))
        return -1;
    $search
}
""")
# Finds the refused element; 0 if another worker has changed the center meanwhile.
_SEARCH = Template("""\
for (int64_t i = 0; i < n; i++) {
        $equations
        if (!($finite))
            return i;
    }
    return 0;""")
_TYPES = {c: name for name, c in C_TYPES.items()}


def header_text() -> str:
    forms = [COMPILED[name] for name in sorted(COMPILED)]
    loops = [_loops(form, real) for form in forms for real in _TYPES]
    entries = [_entry(form, real) for form in forms for real in _TYPES]
    methods = [_method(form, real) for form in forms for real in _TYPES]
    return "".join([_TOP, *loops, "\n", *entries, "\n#define RULE_METHODS", *methods, "\n"])


def _loops(form: Form, real: str) -> str:
    lines, new = form.in_c(number=f"({real}){{}}")
    arrays, scalars, indent = [name for name in form.arguments if name != "d"], _scalars(form), "\n        "
    pointers = [f"{name}_at" for name in arrays]
    read = [f"{real} {', '.join(f'{name} = {name}_at[i]' for name in arrays)};"]
    stores = [f"{name}_at[i] = select_{real}(keep, {new[name]}, {name});" for name in arrays if name in new]
    if form.is_step:  # Totals replace x: d is their mean.
        pointers.insert(0, "totals")
        read.insert(0, f"{real} d = totals[i] / count;")
        stores.insert(0, f"totals[i] = select_{real}(keep, 0, totals[i]);")
    equations = [*read, *(f"{real} {name} = {value};" for name, value in lines)]
    finite = " & ".join(f"finite_{real}({new[name]})" for name in form.guarded)
    unpack = [f"{real} *{name} = ({real} *)(intptr_t)row[{i}];" for i, name in enumerate(pointers)]
    unpack += [f"{real} {name} = ({real})scalars[{i}];" for i, name in enumerate(scalars)]
    search = _SEARCH.substitute(equations=indent.join(_needed(equations, finite)), finite=finite)
    return _LOOPS.substitute(
        T=real,
        name=form.name,
        how="FEW_ARRAYS" if len(pointers) == 2 and not form.is_step else "MANY_ARRAYS",
        declared=", ".join(f"{real} *restrict {name}" for name in pointers),
        scalars="".join(f", {real} {name}" for name in scalars),
        equations=indent.join(equations),
        finite=finite,
        stores=indent.join(stores),
        unpack="\n    ".join([*unpack, f"int64_t n = row[{len(pointers)}];"]),
        passed=", ".join([*pointers, "n", *scalars]),
        search=f"return clear_{real}(totals, n);" if form.is_step else search,
    )


def _needed(declarations: list[str], expression: str) -> list[str]:
    """Return only the declarations that an expression needs."""
    needed, found = set(re.findall(r"\w+", expression)), []
    for line in reversed(declarations):
        names = re.findall(r"(\w+) = ", line)
        if needed.intersection(names):
            needed.update(re.findall(r"\w+", line))
            found.append(line)
    return found[::-1]


def _entry(form: Form, real: str) -> str:
    scalars, columns = _scalars(form), len(form.arguments) + 1
    return f'ENTRY({form.name}, {real}, {columns}, "Kn{"d" * len(scalars)}:{form.name}_{_TYPES[real]}")\n'


def _method(form: Form, real: str) -> str:
    name = f"{form.name}_{_TYPES[real]}"
    call = ", ".join(["table_address", "pieces", *_scalars(form)])
    return f' \\\n    {{"{name}", py_{form.name}_{real}, METH_VARARGS, "{name}({call})"}},'


def _scalars(form: Form) -> list[str]:
    """Name the scalars of the loops; an outer step has the number of contributions first."""
    return ["count", *form.scalars] if form.is_step else list(form.scalars)


if __name__ == "__main__":
    HEADER.write_text(header_text())
