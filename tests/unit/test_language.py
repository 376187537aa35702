"""Markdown and names that a machine can check; CONTRIBUTING.md has the rules of the language."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest

BASE = Path(importlib.util.find_spec("platoon_base").origin).parent
ROOT = BASE.parent
PACKAGES = ("platoon_base", "platoon_plugins")
DOCS = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
DOCS += [*(ROOT / name / "README.md" for name in ("tests", "examples"))]
DOCS += sorted((ROOT / "docs").rglob("*.md"))
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LONGEST = 100  # Columns of a line of prose.
WIDEST = 85  # Columns of code, which the site shows without a scroll bar.
CODE = re.compile(r"^```(?:python|sh|diff|ini|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def prose(text):
    """Return Markdown with its code blocks blanked; line numbers stay."""

    def blank(block):
        return "\n" * block.group().count("\n")

    return re.sub(r"^```.*?^```", blank, text, flags=re.DOTALL | re.MULTILINE)


def long_lines(text):
    """List the numbers of lines that are too long; tables and single links cannot be broken."""
    lines = enumerate(prose(text).splitlines(), 1)
    return [n for n, line in lines if len(line) > LONGEST and not re.match(r"\||\W*\S+$", line)]


def wide_code(text):
    """List the lines of code that are too wide."""
    blocks = CODE.findall(text)
    return [line for block in blocks for line in block.splitlines() if len(line) > WIDEST]


def anchors(text):
    """Return the anchors of Markdown's headings as GitHub and the site make them."""
    headings = re.findall(r"^#+ +(.*)$", prose(text), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    plain = [heading.replace("`", "").lower() for heading in plain]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def wrong_links(path):
    """List the links of a page that lead to no file, or to no heading in it."""
    wrong = []
    for link in LINK.findall(prose(path.read_text())):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if "://" not in link and not (
            target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target.read_text()))
        ):
            wrong.append(link)
    return wrong


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def missing_sentence(path):
    """Return what a module has in place of a first sentence."""
    first = (ast.get_docstring(tree_of(path)) or "").split("\n\n")[0]
    return "" if re.search(r"[.:]$", first) else first or "no docstring"


def test_the_checks_find_what_they_should(tmp_path):
    assert anchors("# One\n\n## A `b.py`, and (c)\n```\n# none\n```\n") == {"one", "a-bpy-and-c"}
    wide = "x" * 60 + " " + "y" * 60
    text = f"{wide}\n```\n{wide}\n```\n| {wide} |\n- {'z' * 120}\n{wide}"
    assert long_lines(text) == [1, 7]
    text = f"{wide}\n```sh\n{wide}\n```\n```text\n{wide}\n```\n```python\nx\n```"
    assert wide_code(text) == [wide]
    page = tmp_path / "a.md"
    page.write_text("# A\n[a](#a) [b](#b) [c](c.md) [d](https://d.org) ![e](e.png)\n")
    assert wrong_links(page) == ["#b", "c.md"]


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (lambda path: long_lines(path.read_text()), DOCS),
        (lambda path: wide_code(path.read_text()), DOCS),
        (wrong_links, DOCS),
        (missing_sentence, MODULES),
    ],
    ids=["long lines", "wide code", "links", "first sentences"],
)
def test_no_file_breaks_the_rule(rule, files):
    found = {name_of(path): rule(path) for path in files}
    assert len(found) > 10
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


# The drawings of docs/design_ways.md have a file and a function in each line.
STEP = re.compile(r"^ *([a-z][\w/]*\.py) +([A-Za-z_]\w*(?:\.\w+)?)(?= |$)", re.MULTILINE)


def defines(path, name):
    """Return whether a file defines a function, a class or a method."""
    node = tree_of(path)
    for part in name.split("."):
        node = next((inner for inner in node.body if getattr(inner, "name", None) == part), None)
        if node is None:
            return False
    return True


def test_the_ways_in_the_design_are_those_of_the_code():
    text = (ROOT / "docs" / "design_ways.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    steps = {step for block in blocks for step in STEP.findall(block)}
    assert len(steps) > 40
    adapters = ("blocks", "keras", "lasagne")
    folder = {True: "platoon_plugins", False: "platoon_base"}
    wrong = [(file, name) for file, name in steps if not defines(ROOT / folder[file.startswith(adapters)] / file, name)]
    assert wrong == []


def test_the_decisions_name_files_that_are_there():
    pages = [ROOT / "docs" / "design.md", *(ROOT / "docs" / "decisions").glob("*.md")]
    found = [re.findall(r"`([\w./]+\.(?:py|c|h))`", page.read_text()) for page in pages]
    named = {name for names in found for name in names}
    folders = (*PACKAGES, "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    known = [f"/{name_of(path)}" for path in files] + [f"/{path.name}" for path in ROOT.glob("*.py")]
    assert len(named) > 100
    assert sorted(n for n in named if not any(path.endswith(f"/{n}") for path in known)) == []


def test_the_names_of_the_glossary_are_in_the_code():
    text = (ROOT / "docs" / "glossary.md").read_text()
    cells = re.findall(r"^\|.*\|.*\|(.*)\|$", text, re.MULTILINE)
    named = set(re.findall(r"`([A-Za-z_][\w.]*)`", " ".join(cells)))
    named = {name for name in named if not name.endswith((".py", ".c"))}
    folders = (*PACKAGES, "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    assert len(named) > 80
    assert sorted(name for name in named if not set(name.split(".")) <= words) == []


def test_every_decision_has_a_date():
    undated = []
    for page in sorted((ROOT / "docs" / "decisions").glob("[a-z]*.md")):
        text = prose(page.read_text())
        level = "###" if re.search(r"^### ", text, re.MULTILINE) else "##"
        for heading, rest in re.findall(rf"^{level} (.*)\n+(.*)", text, re.MULTILINE):
            undated += [] if re.match(r"\*2026-\d\d-\d\d", rest) else [f"{page.name}: {heading}"]
    assert undated == []


def test_the_recipes_name_files_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.findall(r"`((?:\w[\w.]*|\.ci)/[\w./]*\w)`", text)
    named = {name for name in found if "NAME" not in name and "ENV" not in name}
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
