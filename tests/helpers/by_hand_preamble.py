"""What scripts of workers import that are started by hand, under the names of the original Platoon."""

# ruff: noqa: F401 - for the scripts
import sys

import numpy

from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import ASGD, EASGD, ParamSyncRule

parser = Worker.default_parser()
args = parser.parse_args()
worker = Worker(**Worker.default_arguments(args))
