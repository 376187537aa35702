"""Build and metadata. The C extensions are optional: without them platoon_base works through NumPy."""

import os
import re
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).resolve().parent


def read_version():
    text = (HERE / "platoon_base" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('platoon_base/__init__.py has no line __version__ = "..."; setup.py reads the version there')
    return match.group(1)


def read_readme():
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


def extensions():
    # One build in place serves all Pythons from 3.9; environments that share a source tree need not repeat it.
    if os.environ.get("PLATOON_BUILD_EXTENSION") == "0":
        return []
    # A free-threaded CPython has no limited API yet.
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return []
    # No contraction and no reordering: the results stay the bits that NumPy gives.
    flags = ["-O3", "-ffp-contract=off", "-fno-math-errno"]
    # Comparisons vectorize only where nobody asks which of them met a NaN.
    return [
        _extension("_kernels", flags),
        _extension("_collectives", [*flags, "-fno-trapping-math"], "_reductions.h"),
        _extension("_excerpt", [*flags, "-pthread"]),
    ]


def _extension(name, flags, *headers):
    return Extension(
        f"platoon_base.{name}",
        [f"platoon_base/{name}.c"],
        depends=[f"platoon_base/{header}" for header in headers],
        define_macros=[("Py_LIMITED_API", "0x03090000")],
        py_limited_api=True,
        optional=True,
        extra_compile_args=flags,
    )


# NumPy 1.23 is the last one that Theano compiles with, and Python 3.11 the last one that has it. On later ones pip
# finds no version at once, and names the marker, instead of failing in the middle of Theano's setup.py.
THEANO = [
    'Theano==1.0.5; python_version < "3.12"',
    'numpy<1.24; python_version < "3.12"',
    'scipy; python_version < "3.12"',
    'Theano<0; python_version >= "3.12"',
]

setup(
    name="platoon-plugins",
    version=read_version(),
    description="Multi-process data parallelism for Theano-era training scripts: Lasagne, Blocks, Keras",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    author="the platoon-plugins developers",
    license="MIT",
    python_requires=">=3.9",
    packages=find_packages(include=["platoon_base", "platoon_base.*", "platoon_plugins", "platoon_plugins.*"]),
    package_data={"platoon_base": ["py.typed"], "platoon_plugins": ["py.typed"]},
    zip_safe=False,
    ext_modules=extensions(),
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
    install_requires=[
        "numpy>=1.21",
        "pyzmq>=22.3",
        "posix_ipc>=1.0.5",
        "msgspec>=0.18",
        "rich>=12.0",
        "click>=8.0",
        "setproctitle>=1.3",
    ],
    extras_require={
        "theano": THEANO,
        "lasagne": ["Lasagne>=0.1", *THEANO],
        # Keras 3 brings no back end along: install torch, jax or tensorflow beside it.
        "keras": ["keras>=3"],
        # The last Keras that runs on Theano, with KERAS_BACKEND=theano.
        "keras2": ["Keras==2.3.1", "h5py", *THEANO],
        # Needs Theano and Fuel in place, see docs/compat.md. Fuel is no extra: pip alone cannot build it.
        "blocks": ["blocks @ git+https://github.com/mila-iqia/blocks.git"],
        # For `platoon launch --tensorboard`; TensorBoard itself shows the files.
        "tensorboard": ["tensorboardX>=2.6"],
        "examples": ["scikit-learn", "matplotlib"],
        "test": [
            "pytest>=7.0",
            "pytest-timeout>=2.1",
            "pytest-xdist>=3.0",
            "hypothesis>=6.50",
            "psutil>=5.9",
            "tensorboardX>=2.6",
        ],
        "lint": ["ruff", "mypy"],
    },
    entry_points={
        "console_scripts": [
            "platoon = platoon_base.cli:main",
            "platoon-launcher = platoon_base.cli.platoon_launcher:main",
        ]
    },
)
