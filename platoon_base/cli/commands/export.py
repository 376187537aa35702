"""``platoon export``: the center of a checkpoint for other programs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from platoon_base.errors import ConfigurationError
from platoon_base.frameworks.registered import registered


@click.command("export")
@click.option(
    "--center",
    is_flag=True,
    help="Write the center itself. The default is its average, if the rule keeps one: the values "
    "that are validated and left in the model.",
)
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def command(center: bool, checkpoint: Path, file: Path) -> None:
    """Write the parameters in CHECKPOINT, a file or a folder of them, to FILE as safetensors.

    Tensors have the names of the parameters. Shared moments of the optimizer have their own names.
    It needs safetensors. A running job may continue to write to the folder.

    If CHECKPOINT is an HDF5 model that was saved on Theano, write it to FILE as HDF5 for newer
    versions of its framework, which would misread it unconverted. It needs h5py.
    """
    for framework in registered().frameworks.values():
        if said := framework.export(checkpoint, file):
            click.echo(said)
            return
    if importlib.util.find_spec("safetensors") is None:
        raise ConfigurationError(
            "export writes safetensors, and safetensors is not installed: pip install "
            "'platoon-plugins[safetensors]', or pip install safetensors"
        )
    from platoon_base.checkpoints.export import export

    path, what = export(checkpoint, file, center)
    click.echo(f"{file}: {what} of {path}")
