"""The table of tests/README.md, which names each file, and the promises of docs/reliability, tested by `make test`."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
LIBRARY = ("platoon_base", "platoon_plugins")
ROW = re.compile(r"^\| (`.*`.*?) \| (.*) \|$", re.MULTILINE)
NAME = re.compile(r"`([^`]+)`")
PROMISED_ROW = re.compile(r"pytest\.param\('(\w+)'(?:(?!pytest\.param\().)*?mark\.promise")


def rows(text):
    """Return a pair of lists for each row: names of code (those of folders end with a slash) and names of tests."""
    return [(NAME.findall(code), NAME.findall(tests)) for code, tests in ROW.findall(text)]


def uncovered(paths, code):
    """List the paths that are neither named nor in a folder that is."""
    folders = tuple(name for name in code if name.endswith("/"))
    return [path for path in paths if path not in code and not path.startswith(folders)]


TABLE = rows((TESTS / "README.md").read_text())
CODE = [name for code, _ in TABLE for name in code]
NAMED_TESTS = {name for _, tests in TABLE for name in tests}


def test_what_the_table_names_exists():
    assert [name for name in CODE if not (ROOT / name).exists()] == []
    assert [name for name in sorted(NAMED_TESTS) if not (TESTS / name).is_file()] == []
    assert [name for name in CODE if name.endswith("/") != (ROOT / name).is_dir()] == []


def test_every_row_leads_to_a_test_and_no_row_is_a_whole_package():
    assert [code for code, tests in TABLE if not tests] == []
    assert {f"{package}/" for package in LIBRARY}.isdisjoint(CODE)
    assert len(set(CODE)) == len(CODE)


def test_every_file_of_the_library_has_a_row():
    files = [path for package in LIBRARY for end in ("py", "c", "h") for path in (ROOT / package).rglob(f"*.{end}")]
    assert len(files) > 100
    assert uncovered(sorted(path.relative_to(ROOT).as_posix() for path in files), CODE) == []


def test_every_file_of_tests_is_named():
    files = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    assert len(files) > 50
    assert sorted(files - NAMED_TESTS) == []


def test_every_folder_of_tests_is_described():
    text = (TESTS / "README.md").read_text()
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
    assert {name for name in folders if f"\n* `{name}` " not in text} == set()


# What their tests take is too long for `make test`: the churn of a soak, round trips of 2 s, several hosts resumed, and
# 100 MB that are resumed.
TESTED_BY_ALL = ("30 % of the workers are killed", "Round trips may take 2 s", "another number of hosts")
TESTED_BY_ALL += ("keeps no copy of the checkpoint",)


def promising():
    """Return the names of the tests that `make test` runs, and of their files."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        of_all = path.parent.name in ("unit", "contract") or any(
            isinstance(node, ast.Assign) and "mark.promise" in ast.unparse(node) for node in tree.body
        )
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            if of_all or any("mark.promise" in ast.unparse(each) for each in node.decorator_list):
                found |= {node.name, path.name}
            for row in PROMISED_ROW.findall(ast.unparse(node)):
                found.add(f"{node.name}[{row}]")
    return found


def test_each_promise_has_a_test_that_make_test_runs():
    tested, rows_seen, left = promising(), 0, []
    for page in (ROOT / "docs" / "reliability").glob("*.md"):
        for row in page.read_text().splitlines():
            names = (
                {re.split(r"::|/", name)[-1] for name in NAME.findall(row) if "test_" in name}
                if row.startswith("| ")
                else set()
            )
            if names:
                rows_seen += 1
                left += [row] if not names & tested and not any(words in row for words in TESTED_BY_ALL) else []
    assert rows_seen > 100
    assert left == []
