"""Prints the ./kvlab commands of a Markdown file's ```sh blocks, one a line, in order, each once: readme_commands.py README.md

A trailing backslash continues a line, a leading `$ ` is a prompt, and ` #` begins a comment. `./kvlab test` is left out: CI has run it before.
"""

import re
import sys

_SKIPPED = ("./kvlab test",)


def commands(text):
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            line = re.sub(r"\s+#.*$", "", line.removeprefix("$ ")).strip()
            if line.startswith("./kvlab") and not line.startswith(_SKIPPED) and line not in found:
                found.append(line)
    return found


if __name__ == "__main__":
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            print("\n".join(commands(file.read())))
