"""Prints the files of this repository that a target of build/release is compiled from: sources, and the headers that they include.

usage: .ci/inputs.py TARGET ...      after cmake has configured build/release; nothing needs to be built
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/release"


def sources(targets):
    """The targets' sources, those of a unity build by the files that they join."""
    ran = subprocess.run(["ninja", "-C", BUILD, "-t", "inputs", *targets], check=True, capture_output=True, text=True)
    for line in ran.stdout.splitlines():
        name = Path(line) if Path(line).is_absolute() else BUILD / line
        if name.suffix in (".cpp", ".cu") and name.is_relative_to(ROOT) and not name.is_relative_to(BUILD):
            yield name.relative_to(ROOT)
        elif name.suffix == ".cxx" and name.exists():
            for joined in re.findall(r'^#include "([^"]+)"', name.read_text(), re.M):
                if Path(joined).is_relative_to(ROOT):
                    yield Path(joined).relative_to(ROOT)


def with_headers(names):
    """Those files, and all that they include by a path from the root."""
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name in found or not (ROOT / name).exists():
            continue
        found.add(name)
        left += [Path(i) for i in re.findall(r'^#include "([^"]+)"', (ROOT / name).read_text(), re.M)]
    return found


if __name__ == "__main__":
    print("\n".join(sorted(map(str, with_headers(sources(sys.argv[1:]))))))
