"""What `.ci/readme.py` reads out of a README: the files and the commands of a new user, in their order."""

import sys
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci"
README = """# Title

```sh
git clone x && make demo
pip install "platoon-plugins[keras]" torch
```

Save this as `train.py`:

```python
print(1)
```

```sh
KERAS_BACKEND=torch platoon launch -n 2 train.py   # two workers
platoon launch -n 2 other.py
```

Or:

```diff
-a
+b
```

```python
...
part()
```

```sh
platoon doctor
python train.py
```
"""


@pytest.fixture
def nothing_left_behind():
    """Nothing here starts what could stay behind."""


@pytest.fixture
def readme(monkeypatch):
    if sys.version_info < (3, 11):
        pytest.skip("needs Python 3.11, as all of .ci")
    monkeypatch.syspath_prepend(str(CI))
    before = set(sys.modules)
    import readme

    yield readme
    for name in {"readme", "dist", "venvs", "common"} - before:
        sys.modules.pop(name, None)


@pytest.mark.base
def test_files_and_the_commands_that_use_them_in_their_order(readme):
    assert [tuple(step) for step in readme.steps(README)] == [
        ("", 'pip install "platoon-plugins[keras]" torch'),
        ("train.py", "print(1)\n"),
        ("", "KERAS_BACKEND=torch platoon launch -n 2 train.py   # two workers"),
        ("", "python train.py"),
    ]


@pytest.mark.base
def test_a_readme_without_a_script_to_run_is_an_error(readme):
    with pytest.raises(readme.SetupError, match="no block of Python that a command runs"):
        readme.steps(README.replace("train.py", "it").replace("other.py", "them"))


@pytest.mark.base
def test_the_wheel_takes_the_place_of_the_package(readme, tmp_path):
    record = "#!/bin/sh\nprintf '%s\\n' \"$@\" > words\n"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").write_text(record)
    (tmp_path / "bin" / "pip").chmod(0o755)
    wheel = Path("/a/platoon.whl")
    for line, words in (
        ('pip install "platoon-plugins[keras]" torch', ["install", "/a/platoon.whl[keras]", "torch"]),
        ("pip install platoon-plugins", ["install", "/a/platoon.whl"]),
        ("pip install '.[lasagne]'", ["install", "/a/platoon.whl[lasagne]"]),
    ):
        readme.do(readme.Step("", line), tmp_path, tmp_path, wheel)
        assert (tmp_path / "words").read_text().split("\n")[:-1] == words
