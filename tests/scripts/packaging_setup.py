import runpy
import sys
import setuptools

sys.platform = sys.argv[1]
setuptools.setup = lambda **options: print("set up with", len(options["ext_modules"]), "extensions")
runpy.run_path(sys.argv[2], run_name="__main__")
