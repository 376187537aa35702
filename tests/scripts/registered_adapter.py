from platoon_base.frameworks import Framework


def checks(earlier):
    from platoon_base.frameworks import importable

    assert "Theano" in earlier and "PyTorch" in earlier
    yield importable("Tiny", "tinyframe", "pip install tinyframe", distributions=["tiny-adapter"])


def paint(module):
    module.COLOUR = "red"


FRAMEWORK = Framework(
    preload=("tinyframe",),
    worth_preloading=("tinyframe",),
    after_import={"tinyframe": paint},
    checks=checks,
    distributions=("tiny-adapter",),
    variables=("TINY",),
    rule_goes_to="tiny.sync (Tiny)",
)
