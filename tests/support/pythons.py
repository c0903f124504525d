"""Find older versions of Python. Both noxfiles use it."""

import os
import shutil
import subprocess
from pathlib import Path


def find_python(*versions):
    """Return the first of these Pythons on the path or in pyenv that can run, or False."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in versions:
        programs = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
        for program in filter(None, programs):
            # A version manager's shim may fail.
            if subprocess.run([program, "-c", ""], capture_output=True).returncode == 0:
                return str(program)
    return False
