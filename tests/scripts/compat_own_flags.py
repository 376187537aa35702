import os

os.environ["THEANO_FLAGS"] = "floatX=float16,device=cuda7"
import theano
from platoon_base import connect

with connect() as worker:
    config = theano.config
    worker.report({"found": f"{config.floatX} {config.device} {config.base_compiledir}"})
    assert "blas.ldflags=" in os.environ["THEANO_FLAGS"]
