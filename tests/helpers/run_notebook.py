"""Runs cells in a real kernel: ``python run_notebook.py FOLDER N`` reads FOLDER/cells.json and writes outputs.json.

If N is not 0, the kernel is interrupted once there are N files FOLDER/waiting*. A process of its own, because nbclient
leaves sockets behind.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import nbclient
import nbformat

KERNEL = (
    """{"argv": ["%s", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "", "language": ""}"""
)


def main(folder, files):
    spec = folder / "jupyter" / "kernels" / "here" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(KERNEL % sys.executable)
    os.environ["JUPYTER_PATH"] = str(folder / "jupyter")
    cells = json.loads((folder / "cells.json").read_text())
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=150, allow_errors=True, kernel_name="here")
    if files:
        threading.Thread(target=interrupt, args=(client, folder, files), daemon=True).start()
    client.execute(cwd=str(folder))
    outputs = [
        [
            (output.output_type, output.get("text") or output.get("evalue") or output.get("data", {}).get("text/plain"))
            for output in cell.outputs
        ]
        for cell in notebook.cells
    ]
    (folder / "outputs.json").write_text(json.dumps(outputs))


def interrupt(client, folder, files):
    while len(list(folder.glob("waiting*"))) < files:
        time.sleep(0.05)
    os.kill(client.km.provisioner.pid, signal.SIGINT)  # as Jupyter's button does


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
