"""The language of docs and docstrings, as far as a machine can hold it; CONTRIBUTING.md has the rules."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest

BASE = Path(importlib.util.find_spec("platoon_base").origin).parent
ROOT = BASE.parent
DOCS = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
DOCS += [*(ROOT / name / "README.md" for name in ("tests", "examples")), *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(path for room in ("platoon_base", "platoon_plugins") for path in (ROOT / room).rglob("*.py"))
LONGEST = 100  # columns of a line in docs
WIDEST = 85  # columns of code in docs, which the site shows without a scroll bar; output is as wide as it is
CODE = re.compile(r"^```(?:python|sh|diff|ini|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)

# Earlier names of things that have a standard name: fork server, child, job's state, stop votes.
OLD_WORDS = re.compile(r"(?<!PLATOON_NO_)(?:nursery|prefork|bootstrap|control.words|\bballot)", re.IGNORECASE)
# Names that said nothing to an engineer of the field: poll, report, release, readmit, donated and the like do.
OLD_NAMES = re.compile(
    r"\b_*(?:\w*LOOK_S|next_look|let_go\w*|tell_\w+|TellsLoss|make_told|fall_in|fall_out|expect_again|take_up|"
    r"come_in_vain|given_away|given_words|hang_up|insist|patient_until|askers?|doorkeeper|Doorkeeper|Standstill)\b"
)
CLAUSE = re.compile(r"[*\"'`(\s-]*(?:What|Who|Whoever|Whatever)\b")


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def prose(text):
    """Return Markdown without its code blocks, with as many lines."""
    return re.sub(r"^```.*?^```", lambda block: "\n" * block.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE)


def long_lines(text):
    """List the numbers of the lines that are too long; tables and lines of one link cannot be broken."""
    lines = enumerate(prose(text).splitlines(), 1)
    return [number for number, line in lines if len(line) > LONGEST and not re.match(r"\||\W*\S+$", line)]


def wide_code(text):
    """List the lines of code that are too wide."""
    return [line for block in CODE.findall(text) for line in block.splitlines() if len(line) > WIDEST]


def clauses(text):
    """List the sentences that begin with what or who and are no questions."""
    sentences = re.split(r"(?<=[.!?])[*\"'`)]*\s+(?=[*\"'`(]*[A-Z])", " ".join(text.split()))
    return [found for found in sentences if CLAUSE.match(found) and not re.search(r"\?\W*$", found)]


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text):
    """List the anchors of Markdown's headings as GitHub and the site make them."""
    headings = re.findall(r"^#+ +(.*)$", prose(text), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def passages(text):
    """Cut Markdown into paragraphs, list items and cells of tables; leave out headings."""
    for passage in re.split(r"\n\s*\n|\n(?=\s*(?:[|*-]|\d+\.)\s)", prose(text)):
        if not passage.lstrip().startswith("#"):
            yield from passage.split("|") if passage.lstrip().startswith("|") else [passage]


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def docstrings(path):
    """Yield the paragraphs of all docstrings of a file, with the name that each belongs to."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for paragraph in re.split(r"\n\s*\n|\n-+\n", ast.get_docstring(node) or ""):
                yield getattr(node, "name", "module"), paragraph


def test_what_breaks_a_rule_is_seen():
    assert anchors("# One\n\n## A `b.py`, and (c)\n```\n# none\n```\n") == {"one", "a-bpy-and-c"}
    wide = "x" * 60 + " " + "y" * 60
    assert long_lines(f"{wide}\n```\n{wide}\n```\n| {wide} |\n- {'z' * 120}\n{wide}") == [1, 7]
    assert wide_code(f"{wide}\n```sh\n{wide}\n```\n```text\n{wide}\n```\n```python\nx\n```") == [wide]
    assert clauses("It works. What arrives is bounded.") == ["What arrives is bounded."]
    assert clauses("*Who* comes, leaves. What now? It says what it does. Whoever waits is told.") == [
        "*Who* comes, leaves.",
        "Whoever waits is told.",
    ]
    text = "# What it is\n\n* one\n  more\n* What two is\n\n| a | Who comes |\n```\nWhat\n```\n"
    assert [found for passage in passages(text) for found in clauses(passage)] == ["* What two is", "Who comes"]
    assert OLD_WORDS.findall("the ballot, preforked, ballots, PLATOON_NO_PREFORK, control words") == [
        "ballot",
        "prefork",
        "ballot",
        "control words",
    ]


def wrong_clauses(path):
    return [found for passage in passages(path.read_text()) for found in clauses(passage)]


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


def missing_sentence(path):
    """Return what a module has in place of a first sentence that says what it is for."""
    first = (ast.get_docstring(tree_of(path)) or "").split("\n\n")[0]
    return "" if re.search(r"[.:]$", first) else first or "no docstring"


def wrong_docstrings(path):
    return [(name, found) for name, text in docstrings(path) for found in clauses(text)]


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (lambda path: long_lines(path.read_text()), DOCS),
        (lambda path: wide_code(path.read_text()), DOCS),
        (wrong_clauses, DOCS),
        (wrong_links, DOCS),
        (missing_sentence, MODULES),
        (wrong_docstrings, MODULES),
    ],
    ids=["long lines", "code that needs a scroll bar", "clauses", "links", "first sentences", "docstrings"],
)
def test_no_file_breaks_the_rule(rule, files):
    found = {name_of(path): rule(path) for path in files}
    assert len(found) > 10
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_things_have_one_name():
    this = Path(__file__)
    files = [path for folder in ("platoon_base", "platoon_plugins", "tests") for path in (ROOT / folder).rglob("*.py")]
    files += [path for path in DOCS if path.name != "CHANGELOG.md"]  # which tells the old names
    texts = {name_of(path): path.read_text() for path in files if path != this}
    found = {name: OLD_WORDS.findall(text) + OLD_NAMES.findall(text) for name, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}


# The drawings of docs/design_ways.md: a file and a function in each line of a block.
STEP = re.compile(r"^ *([a-z][\w/]*\.py) +([A-Za-z_]\w*(?:\.\w+)?)(?= |$)", re.MULTILINE)


def defines(path, name):
    """Tell whether a file defines a function, a class or a method."""
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
    assert len(steps) > 50
    assert ("worker/handle.py", "Worker.all_reduce") in steps
    adapters = ("blocks", "keras", "lasagne")
    folders = {file: "platoon_plugins" if file.startswith(adapters) else "platoon_base" for file, _ in steps}
    wrong = [(file, name) for file, name in steps if not defines(ROOT / folders[file] / file, name)]
    assert wrong == []


def test_the_decisions_name_files_that_are_there():
    texts = [path.read_text() for path in [ROOT / "docs" / "design.md", *(ROOT / "docs" / "decisions").glob("*.md")]]
    named = {name for text in texts for name in re.findall(r"`([\w./]+\.(?:py|c|h))`", text)}
    folders = ("platoon_base", "platoon_plugins", "tests")
    known = [f"/{name_of(path)}" for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    known += [f"/{path.name}" for path in ROOT.glob("*.py")]
    assert len(named) > 100
    assert sorted(name for name in named if not any(path.endswith(f"/{name}") for path in known)) == []


def test_the_names_of_the_glossary_are_in_the_code():
    text = "".join((ROOT / "docs" / name).read_text() for name in ("glossary.md", "glossary_code.md"))
    rows = re.findall(r"^\|.*\|.*\|(.*)\|$", text, re.MULTILINE)
    named = {
        name for cell in rows for name in re.findall(r"`([A-Za-z_][\w.]*)`", cell) if not name.endswith((".py", ".c"))
    }
    code = "\n".join(
        path.read_text()
        for folder in ("platoon_base", "platoon_plugins", "tests")
        for path in (ROOT / folder).rglob("*.py")
    )
    words = set(re.findall(r"\w+", code))
    assert len(named) > 100
    assert sorted(name for name in named if not set(name.split(".")) <= words) == []


def test_the_design_stays_short_and_every_decision_has_a_date():
    assert len((ROOT / "docs" / "design.md").read_text().splitlines()) <= 350
    undated = []
    for page in sorted((ROOT / "docs" / "decisions").glob("[a-z]*.md")):
        blocks = re.split(r"\n\s*\n", page.read_text())
        areas = [a for a, b in zip(blocks, blocks[1:]) if re.match(r"##+ ", a) and not re.match(r"\*2026-\d\d-\d\d", b)]
        level = "###" if any(block.startswith("### ") for block in blocks) else "##"
        undated += [f"{page.name}: {block}" for block in areas if block.startswith(f"{level} ")]
    assert undated == []


def test_the_recipes_name_files_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = {name for name in re.findall(r"`((?:\w[\w.]*|\.ci)/[\w./]*\w)`", text) if "NAME" not in name}
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / name).exists() and "ENV" not in name) == []
