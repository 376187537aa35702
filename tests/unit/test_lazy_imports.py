"""What is imported only when it is needed: subcommands, and the names of the package."""

import importlib
import json
import re
from pathlib import Path

import click
import pytest
from programs import run_python

from platoon_base.cli import commands

pytestmark = pytest.mark.base

HEAVY = {"numpy", "zmq", "msgspec", "posix_ipc", "rich", "logging", "subprocess"}


@pytest.fixture
def nothing_left_behind():
    """Nothing here starts what could stay behind."""


def loaded_after(code, *arguments):
    """Run code in a fresh interpreter; return what it printed and what it had loaded at its end."""
    tell = "import atexit, json, sys\natexit.register(lambda: print('\\n' + json.dumps(sorted(sys.modules))))\n"
    printed, _, loaded = run_python("-c", tell + code, *arguments).stdout.rstrip("\n").rpartition("\n")
    return printed, set(json.loads(loaded))


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_the_overview_needs_no_subcommand_and_no_job(words):
    code = "import sys; from platoon_base.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass"
    printed, loaded = loaded_after(code, *words)
    assert printed
    assert loaded & HEAVY == set()
    prefix = "platoon_base.cli.commands."
    assert {name for name in loaded if name.startswith(prefix)} == set()


def test_each_subcommand_is_a_module_with_a_command_of_that_name():
    folder = Path(commands.__file__).parent
    modules = {path.stem for path in folder.glob("[a-z]*.py")} - {"arguments"}
    assert modules == set(commands.SUBCOMMANDS)
    for name in sorted(modules):
        assert importlib.import_module(f"{commands.__name__}.{name}").command.name == name


def test_the_name_of_no_subcommand_is_answered_by_its_neighbours():
    run = run_python("-m", "platoon_base", "lanch", status=2)
    assert "No such command 'lanch'" in run.stderr
    assert "Did you mean" in run.stderr
    assert "launch" in run.stderr.partition("Did you mean")[2]


@pytest.mark.parametrize("name", ["launch", "tune"])
def test_the_help_has_three_examples_first_and_all_options(name):
    command = importlib.import_module(f"{commands.__name__}.{name}").command
    page = command.get_help(click.Context(command, info_name=f"platoon {name}"))
    examples = page.partition("  Examples:\n")[2].partition("\n\n")[0]
    assert examples.count(f"\n    platoon {name} ") + examples.startswith(f"    platoon {name} ") == 3
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert re.search(rf"^  (-\w, )?{max(option.opts, key=len)}\b", page, re.MULTILINE), option.name


def test_importing_the_package_loads_nothing_heavy_and_a_name_brings_what_it_needs():
    _, loaded = loaded_after("import platoon_base")
    assert loaded & HEAVY == set()
    printed, loaded = loaded_after("import platoon_base\nprint(platoon_base.EASGD().alpha, platoon_base.connect)")
    assert printed.startswith("None <function connect")
    assert "platoon_base.worker.handle" in loaded


def test_modules_are_attributes_of_the_package_without_being_imported_by_name():
    printed, _ = loaded_after(
        "import platoon_base\n"
        "print(platoon_base.errors.PlatoonError.__name__, platoon_base.rules.ASGD is platoon_base.ASGD)\n"
        "print(set(platoon_base.__all__) <= set(dir(platoon_base)), hasattr(platoon_base, 'nothing'))"
    )
    assert printed.split() == ["PlatoonError", "True", "True", "False"]
