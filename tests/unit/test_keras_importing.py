"""The import of the Keras adapter where Keras cannot be imported: the error says what to set or install."""

import pytest
from programs import run_python

pytestmark = pytest.mark.base

PACKAGES = {
    "keras": "import os\nimport importlib\nimportlib.import_module(os.environ.get('KERAS_BACKEND', 'tensorflow'))",
    "torch": "",
}


@pytest.mark.parametrize(
    ("packages", "backend", "expected"),
    [
        ((), None, "Keras is not installed: pip install 'platoon-plugins[keras]'"),
        (("keras",), None, "Keras uses tensorflow (its default, or keras.json), which is not installed: pip "),
        (("keras", "torch"), None, "set KERAS_BACKEND=torch, which is installed, or pip install tensorflow"),
        (("keras", "torch"), "jax", "Keras uses jax (KERAS_BACKEND=jax), which is not installed: set KERAS_"),
    ],
)
def test_a_back_end_that_is_not_installed_is_named_with_what_to_do(tmp_path, packages, backend, expected):
    for name in packages:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(PACKAGES[name])
    hidden = [name for name in ("keras", "torch", "jax", "tensorflow", "theano") if name not in packages]
    code = (
        "import importlib.util, os, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "class Hide:\n"
        f"    def find_spec(self, name, path=None, target=None):\n        if name in {hidden}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *more: None if name in {hidden} else find(name, *more)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "os.environ.pop('KERAS_BACKEND', None)\n"
        f"os.environ.update({ {'KERAS_BACKEND': backend} if backend else {} })\n"
        "from platoon_base import compat\ncompat.apply = lambda: None\n"
        "import platoon_plugins.keras\n"
    )
    done = run_python("-c", code, status=1)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("platoon_base.errors.BackendUnavailableError: "), done.stderr
    assert expected in last
