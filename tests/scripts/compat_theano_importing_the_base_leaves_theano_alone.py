import sys

assert not any(name.startswith("platoon_base.compat.theano") for name in sys.modules)
import theano

assert not any(type(finder).__name__ == "AfterImport" for finder in sys.meta_path)
assert theano.gof.compilelock.lock.__module__ == "theano.gof.compilelock"
print("good")
