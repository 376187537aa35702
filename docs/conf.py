"""The site of the docs: Sphinx with MyST, built by `make docs`.

Frameworks are mocked, so the environment needs none of them. MathJax comes from a package: no page loads anything.
"""

import ast
import re
import sys
from pathlib import Path

from sphinx.util import logging

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "platoon-plugins"
author = "the platoon-plugins developers"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "numpydoc", "myst_parser", "sphinx-mathjax-offline"]
extensions += ["sphinx_copybutton", "sphinx_design"]
copybutton_prompt_text = "$ "
html_theme = "furo"
html_title = project
html_show_copyright = False
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "colon_fence"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
suppress_warnings = ["myst.header"]  # pages that begin a level deeper
numpydoc_show_class_members = False
autodoc_mock_imports = ["theano", "pygpu", "lasagne", "keras", "tensorflow", "torch", "jax", "blocks", "fuel"]
autodoc_typehints = "none"

FACES = (
    "platoon_base",
    "platoon_base.data",
    "platoon_plugins.keras",
    "platoon_plugins.lasagne",
    "platoon_plugins.blocks",
)

_EQUATION = re.compile(r"^\s+(\w+ := .*?)(?:\s{2,}(.*))?$")
_GREEK = re.compile(r"alpha|delta|eta|mu")


def to_latex(equation):
    """Turn an equation of a docstring into LaTeX: `d := alpha (x - c)`."""
    text = re.sub(r"sqrt\((\w+)\)", r"\\sqrt{\1}", equation)
    text = re.sub(r"\bsum_(\w)\b", r"\\sum_\1", text).replace(":=", r"\mathrel{:=}").replace("%", r"\%")
    text = re.sub(r"\b(\w)_(\w{2,})", r"\1_{\2}", text)
    text = re.sub(r"(?<![\\{_])\b([a-z]{2,}(?:_[a-z]+)?)\b", lambda word: _upright(word[1]), text)
    return text


def _upright(word):
    return f"\\{word} " if _GREEK.fullmatch(word) else r"\mathrm{" + word.replace("_", r"\_") + r"}\,"


def render_equations(app, what, name, obj, options, lines):
    """Make blocks of equations, which stand behind `::`, mathematics."""
    made, i = [], 0
    while i < len(lines):
        block = next((j for j in range(i + 2, len(lines)) if lines[j][:1].strip()), len(lines))
        found = [_EQUATION.match(line) for line in lines[i + 2 : block] if line.strip()]
        if lines[i].strip() == "::" and found and all(found):
            rows = [to_latex(match[1]) + (rf" \quad \text{{{match[2]}}}" if match[2] else "") for match in found]
            aligned = r"&\mathrel{:=}" if len(rows) > 1 else r"\mathrel{:=}"
            joined = [row.replace(r"\mathrel{:=}", aligned, 1) for row in rows]
            made += [".. math::", "", *(f"   {row} \\\\" for row in joined[:-1]), f"   {joined[-1]}", ""]
            i = block
        else:
            made.append(lines[i])
            i += 1
    lines[:] = made


def outside_links(app, docname, source):
    """Name files that are not pages of the site, such as sources and tests, by their paths in the repository."""
    docs = ROOT / "docs"
    folder = (docs / docname).parent

    def by_path(link):
        path = (folder / link[2]).resolve()
        return link[0] if path.is_relative_to(docs) else f"{link[1]} (`{path.relative_to(ROOT).as_posix()}`)"

    source[0] = re.sub(r"\[([^\]]*)\]\((\.\./[^)#]*)(?:#[^)]*)?\)", by_path, source[0])


def warn_of_undocumented(app, env):
    """Warn of each public function and class of the faces that no page describes."""
    # An adapter's rules are described with the base, and what it imports late in the module that has it.
    described = {(name.split(".")[0], name.rpartition(".")[2]) for name in env.get_domain("py").objects}
    for face in FACES:
        for name in sorted(public_names(face)):
            if not {(face.split(".")[0], name), ("platoon_base", name)} & described:
                logging.getLogger(__name__).warning("docs/api/ has no description of %s.%s", face, name)


def public_names(face):
    """Return the texts of ``__all__`` that name functions and classes, and of the mapping that it is made of."""
    tree = ast.parse((ROOT / face.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    values = [node.value for node in assigned if node.targets[0].id in ("__all__", "_MODULES")]
    parts = [part for value in values for part in (value.keys if isinstance(value, ast.Dict) else value.elts)]
    names = {part.value for part in parts if isinstance(part, ast.Constant) and not part.value.startswith("__")}
    return {name for name in names if not name.isupper() or name in ("EASGD", "ASGD", "EAMSGD")}


def setup(app):
    app.connect("autodoc-process-docstring", render_equations, priority=900)
    app.connect("source-read", outside_links)
    app.connect("env-check-consistency", warn_of_undocumented)
