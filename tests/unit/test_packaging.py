"""What a package index would get: the metadata of pyproject.toml, and what setup.py says on other systems."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from scripts_here import script_path

import platoon_base

pytestmark = pytest.mark.base

ROOT = Path(__file__).parents[2]
SETUP = script_path("packaging_setup")


@pytest.fixture
def nothing_left_behind():
    """Nothing here starts what could stay behind."""


@pytest.fixture
def project():
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run_setup(platform, **environment):
    clean = {k: v for k, v in os.environ.items() if k not in ("PLATOON_OTHER_SYSTEMS", "PLATOON_BUILD_EXTENSION")}
    command = [sys.executable, SETUP, platform, ROOT / "setup.py"]
    run = subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, timeout=100, check=False
    )
    return run.returncode, run.stdout + run.stderr


def test_a_wheel_has_no_module_of_an_earlier_build(tmp_path):
    """A clone that is updated and installed again would keep modules that are gone, or a package beside its module."""
    remove = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["remove_earlier_builds"]
    old = tmp_path / "build" / "lib.linux" / "platoon_base" / "gone.py"
    old.parent.mkdir(parents=True)
    old.touch()
    remove(tmp_path, ["setup.py", "build_ext", "--inplace"])
    assert old.exists()
    remove(tmp_path, ["setup.py", "bdist_wheel"])
    assert not old.exists()


def test_no_requirement_is_a_direct_reference(project):
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    assert len(requirements) > 15
    assert [line for line in requirements if "@" in line or "://" in line] == []


def test_extras_that_the_documents_name_are_there(project):
    texts = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
    named = {name for text in texts for found in re.findall(r"(?:platoon-plugins|\.)\[([\w,]+)\]", text)
             for name in found.split(",")}  # fmt: skip
    assert {"theano", "lasagne"} <= named
    assert named <= set(project["optional-dependencies"])


def test_the_pythons_of_the_classifiers_are_those_that_are_allowed(project):
    told = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    assert f">=3.{min(map(int, told))}" == project["requires-python"]


def test_the_citation_is_of_this_version():
    found = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found == [platoon_base.__version__]


def test_the_public_tests_run_on_the_pythons_that_make_test_runs_on():
    public = re.findall(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    own = re.findall(r"^VERSIONS = \((.*)\)$", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert public == own
    assert len(own) == 1


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_an_installation_on_another_system_ends_with_the_reason_and_the_way_out(platform):
    status, text = run_setup(platform)
    assert status == 1
    assert f"runs its workers on Linux, and this is {platform}" in text
    assert "PLATOON_OTHER_SYSTEMS=1" in text
    assert run_setup(platform, PLATOON_OTHER_SYSTEMS="1") == (0, "set up with 0 extensions\n")


def test_on_linux_nothing_is_asked():
    status, text = run_setup("linux")
    assert (status, text.strip()[:11]) == (0, "set up with")


def test_the_extensions_run_on_the_systems_that_the_wheel_is_for():
    """What names a newer C library ends `make dist`, and with it `make readme`."""
    found = re.search(r"OLDEST_LIBC = \((\d+), (\d+)\)", (ROOT / "noxfile.py").read_text())
    oldest = tuple(map(int, found.groups()))
    installed = Path(platoon_base.__file__).parents[1]
    extensions = sorted((installed / "platoon_base").glob("_*.so"))
    if not extensions:
        pytest.skip("no C extensions: `make setup` builds them, if there is a compiler")
    for extension in extensions:
        needed = {tuple(map(int, pair)) for pair in re.findall(rb"GLIBC_(\d+)\.(\d+)", extension.read_bytes())}
        assert max(needed, default=oldest) <= oldest, extension.name
