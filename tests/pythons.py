"""Where an older Python is. Both noxfiles import it."""

import os
import shutil
import subprocess
from pathlib import Path


def find_python(*versions):
    """The first of these Pythons that is on the path or in pyenv and does run (a version manager's
    shim may not), or False."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in versions:
        programs = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
        for program in filter(None, programs):
            if subprocess.run([program, "-c", ""], capture_output=True).returncode == 0:
                return str(program)
    return False
