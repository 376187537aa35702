from blocks_preamble import *
from collections import OrderedDict
from fuel.datasets import IterableDataset
from fuel.schemes import ConstantScheme
from fuel.transformers import Batch


def examples(rows=80, batch=8):
    whole = data(rows)
    one_by_one = OrderedDict((name, list(getattr(whole, name))) for name in whole.sources)
    return Batch(DataStream(IterableDataset(one_by_one)), ConstantScheme(batch))
