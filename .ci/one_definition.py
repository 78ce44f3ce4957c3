#!/usr/bin/env python3
"""Finds what the linker would merge without a word: types of one name and namespace that two files define, and Eigen outside of *_cpu.cpp.

usage: .ci/one_definition.py      reads every C++ and CUDA file that git tracks; exit status 1 if there is one
Types in unnamed namespaces, nested types and specializations may share a name. A type of a .cpp or .cu file, which no header declares,
counts as well. Programs that are built apart (tests/*/, bench/*/) may use the same names, but none of the program's. The files *_cpu.cpp are compiled for one level
of the CPU: Eigen's functions of other files would have other instructions, and another alignment of memory.
"""

import collections
import re
import subprocess
import sys

TYPE = re.compile(r"(?:template <.*> ?)?(?:class|struct|union|enum class|enum)(?: alignas\(.*?\))? (\w+)(?: final)?(?: ?:[^:][^;]*)?(?: \{.*|)$")
APART = re.compile(r"(tests/\w+|bench/\w+)/")  # one program each
IN_TURN = re.compile(r"kernels/device/(emulated|no_cuda|cuda)/")  # one of them is linked


def types(lines):
    """Yields (line number, qualified name) of the types that are defined at the level of a namespace."""
    spaces = []
    for number, line in enumerate(lines, 1):
        if opened := re.match(r"(?:inline )?namespace ?([\w:]*) \{$", line):
            spaces.append(opened[1])
        elif re.match(r"\}  // namespace", line):
            spaces.pop()
        elif spaces and "" not in spaces and (found := TYPE.match(line)) and not line.endswith(";"):
            yield number, "::".join([*spaces, found[1]])


def main():
    names = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh"], check=True, capture_output=True, text=True).stdout.split()
    places, eigen = collections.defaultdict(list), []
    for name in names:
        if IN_TURN.match(name):
            continue
        program = match[1] if (match := APART.match(name)) else ""
        with open(name, encoding="utf-8") as file:
            lines = file.read().splitlines()
        for number, qualified in types(lines):
            places[program, qualified].append(f"{name}:{number}")
        if not re.search(r"_cpu\.(cpp|h)$", name):
            eigen += [f"{name}:{number}" for number, line in enumerate(lines, 1) if line.startswith("#include <Eigen/")]
    for (program, qualified), where in places.items():
        if program and ("", qualified) in places:  # a test program is linked with the program's objects
            where += places["", qualified]
    twice = {key: where for key, where in places.items() if len(where) > 1}
    for (_, qualified), where in sorted(twice.items()):
        print(f"{qualified} is defined more than once: {', '.join(where)}")
    for where in eigen:
        print(f"{where}: Eigen in a file that is no *_cpu.cpp")
    print(f"{len(names)} files, {len(places)} types: {len(twice)} names defined more than once, Eigen in {len(eigen)} files of other flags")
    return bool(twice or eigen)


if __name__ == "__main__":
    sys.exit(main())
