"""Lists the CUDA device functions that are longer than 50 lines.

usage: .ci/lengths.py [--list] [FILE ...]      without files: all .cu and .cuh files that git tracks; --list: the lengths of all functions
Exit status 1 if there is one. Files are as clang-format leaves them: a function's closing brace is indented as its signature's first line.
"""

import re
import subprocess
import sys

MOST_LINES = 50


def functions(lines):
    """Yields (index of the first line, number of lines) of each function with __device__ or __global__ in its signature."""
    lines = [re.sub(r"\s*//.*", "", line) for line in lines]
    at = 0
    while at < len(lines):
        end = at
        if re.match(r"[\w ]*(template <.*> )?[\w ]*(__device__|__global__)", lines[at]):
            while end + 1 < len(lines) and not lines[end].endswith(("{", "}", ";")):
                end += 1
            if lines[end].endswith("{"):
                closing = re.match(r" *", lines[at])[0] + "}"
                while end + 1 < len(lines) and lines[end] != closing:
                    end += 1
                yield at, end - at + 1
        at = end + 1


def main(arguments):
    listing = "--list" in arguments
    files = [a for a in arguments if a != "--list"] or subprocess.run(
        ["git", "ls-files", "*.cu", "*.cuh"], check=True, capture_output=True, text=True).stdout.split()
    count = longer = 0
    for name in files:
        with open(name, encoding="utf-8") as file:
            lines = file.read().splitlines()
        for first, length in functions(lines):
            count += 1
            longer += length > MOST_LINES
            if listing or length > MOST_LINES:
                print(f"{name}:{first + 1}: {length} lines: {lines[first].strip()}")
    print(f"{len(files)} files, {count} device functions: {longer} longer than {MOST_LINES} lines")
    return longer > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
