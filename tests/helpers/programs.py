"""Programs that tests run to their end."""

import subprocess
import sys


def run_python(*words, status=0, timeout=240, **options):
    """Run Python with these words, require its exit status, and return what it has written."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done
