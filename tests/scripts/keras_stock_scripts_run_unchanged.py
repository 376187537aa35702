"""Run stock scripts one after another, plain or with `prepare` for each model that they train; record what is left."""

import json
import re
import sys
import time
import traceback
from pathlib import Path

folder, prepared, names = Path(__file__).parent, sys.argv[1] == "prepared", sys.argv[2:]


def with_one_line(source, mode):
    """Prepare each model where it is compiled, or loaded and trained."""
    call = r"\g<name> = prepare(\g<name>)" if mode == "async" else r'\g<name> = prepare(\g<name>, mode="sync")'
    source = re.sub(r"^(?P<indent> *)(?P<name>\w+)\.compile\(", rf"\g<indent>{call}\n\g<0>", source, flags=re.M)
    loaded = r"^(?P<name>\w+) = keras\.models\.load_model\(.*\)$(?=[\s\S]*^(history = )?(?P=name)\.fit\()"
    source = re.sub(loaded, rf"\g<0>\n{call}", source, flags=re.M)
    assert "prepare" in source
    return "from platoon_plugins.keras import prepare\n" + source


def left(variables):
    """Return what a script has left in its variables."""
    import numpy as np

    history = variables["history"].history if "history" in variables else {"loss": variables["losses"]}
    weights = [np.asarray(weight, "float64") for weight in variables["model"].get_weights()]
    return {
        "history": {name: [float(value) for value in values] for name, values in history.items()},
        "weights": [float((weight * np.cos(np.arange(weight.size).reshape(weight.shape))).sum()) for weight in weights],
    }


rank, found = 0, {}
for each in names:
    name, _, mode = each.partition(":")
    source = (folder / f"keras_stock_{name}.py").read_text()
    print(f"--- {name}", flush=True)
    started = time.monotonic()
    try:
        if prepared:
            from platoon_base import connect
            from platoon_plugins.keras import prepare, seeds  # noqa: F401 - the import seeds

            rank = connect().global_rank
            seeds.seed_alike(connect().seed)  # as a process that runs this script only
            source = with_one_line(source, mode or "async")
        variables = {"__name__": "__main__"}
        exec(compile(source, f"{name}.py", "exec"), variables)  # noqa: S102
        found[name] = left(variables)
        print(f"--- {name}: {time.monotonic() - started:.1f} s", flush=True)
    except Exception:
        found[name] = {"failed": traceback.format_exc()}
        traceback.print_exc()
    Path(f"rank{rank}.json").write_text(json.dumps(found))
    variables = None  # of a script that has ended; its models are freed
    if "failed" in found[name]:
        sys.exit(1)  # the other worker may be somewhere else
if not prepared:
    assert not any(module.startswith("platoon") for module in sys.modules)
