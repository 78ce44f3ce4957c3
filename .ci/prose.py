"""Checks comments, docstrings and guides for the words and openings that the style rules out.

usage: .ci/prose.py [--list] [FILE ...]      without files: all that git tracks; --list prints what is flagged
Exit status 1 if a group passes a limit: 0.1 flagged words per 1,000, 1 % of the sentences with a flagged opening.
Not read: generated pages, code blocks and code spans. Headings and questions may open as they like.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize

MOST_WORDS_PER_1000 = 0.1
MOST_OPENINGS = 0.01
GROUPS = {"headers": (".h", ".cuh"), "sources": (".cpp", ".cu"), "python and shell": (".py", ".sh", "kvlab", ".ci/run"), "markdown": (".md",)}
GENERATED = {"docs/results/claims.md", "docs/kv-recipes.md"}

OPENING = re.compile(r"(What|Where|Whether|Of|Who)\b")
# "behind" for after, "lies" and "stands" for is or represents. A name in code or in quotes is no word of the sentence.
WORDS = re.compile(r"\b(behind|lies?|lying|stands?|stood|standing)\b(?!-)", re.I)
# "answers" for returns: a subject before it, and after it what a verb takes. A model's answers are a term, and so is the plural after
# these words.
NOUNS = set("""a after all and any are as both different each earlier equal exact few first fewer from graded has have his if in is its long longer
            lost many measures more most new no of on one or other our recorded right same several short some such take than that the their these
            those three four five true two when where which whose while with without wrong your""".split())
ANSWERS = re.compile(r"(\S+)\s+answers\s+(?:with|in|for|to|as|at|by|on|how|when|whether|what|which|that|whose|of|a|an|the|its|it|one|no|only|null|nothing|\d|`)", re.I)
BARE = re.compile(r"answers (?:a|if|no|the|what|whether|with)\b", re.I)  # at a sentence's start, where a plural has no object


def is_verb(match):
    """True if "answers" in a match of ANSWERS is the verb: the word before it is a subject, not one that makes it a noun."""
    before = match.group(1).strip("*_(,;:\"").lower()
    return not (before in NOUNS or before.endswith(("'s", "s'", "ed")) or before[:1].isdigit() or match.group(1).endswith((",", ":", ";", ".")))


def flagged_words(sentence):
    text = re.sub(r"'[^' ]*'|\"[^\"]*\"", "X", sentence)
    return len(WORDS.findall(text)) + sum(is_verb(match) for match in ANSWERS.finditer(text)) + bool(BARE.match(text))


def runs(lines):
    """Joins comments that have lines to themselves: (line number, text, whole line?) to (first line, text)."""
    joined, began, last = [], 0, -1
    for number, text, whole in lines:
        if joined and not (whole and number == last + 1 and text):
            yield began, " ".join(joined)
            joined = []
        if whole and text:
            began, last = (began if joined else number), number
            joined.append(text)
        elif text:
            yield number, text
    if joined:
        yield began, " ".join(joined)


def cpp_comments(text):
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
        match = re.search(r"(?<!:)//+<?\s?(.*)", code)
        if match:
            yield number, match.group(1).strip(), not code[:match.start()].strip()


def shell_comments(text):
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"(\s*)#(?!!)\s?(.*)|(.*\s)#\s(.*)", re.sub(r'"[^"]*"|\'[^\']*\'', '""', line))
        if match:
            yield number, (match.group(2) or match.group(4) or "").strip(), match.group(3) is None


def python_comments(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield token.start[0], token.string.lstrip("# "), not token.line[:token.start[1]].strip()


def docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node)):
                yield node.body[0].lineno, " ".join(paragraph.split())


def markdown(text):
    """Yields paragraphs, list items and table cells, without code, addresses and headings."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2$", lambda m: "\n" * m.group().count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]+`", "`X`", re.sub(r"\]\([^)]*\)", "]", text))
    began, joined = 0, []
    for number, line in enumerate(text.splitlines() + [""], 1):
        line = line.strip().lstrip("> ")
        starts = re.match(r"([-*+]|\d+\.)\s|\||#|<|$", line)
        if starts and joined:
            yield began, " ".join(joined)
            joined = []
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in line.strip("|").split("|"))
        elif line and not line.startswith(("#", "<")):
            began = began if joined else number
            joined.append(re.sub(r"^([-*+]|\d+\.)\s+", "", line))


def pieces(name, text):
    if name.endswith(".md"):
        return list(markdown(text))
    if name.endswith(".py"):
        return [*runs(python_comments(text)), *docstrings(text)]
    return list(runs((cpp_comments if name.endswith(GROUPS["headers"] + GROUPS["sources"]) else shell_comments)(text)))


def sentences(piece):
    parts = re.split(r"(?<=[.!;?])[*_)]*\s+", piece)
    return [s.lstrip("*_[(") for s in parts if re.search(r"[A-Za-z]{2}", s)]


def check(group, files, listing):
    """Prints the group's line; returns whether it keeps the limits."""
    words = count = flagged = openings = 0
    for name in files:
        with open(name, encoding="utf-8") as file:
            found = [(number, s) for number, piece in pieces(name, file.read()) for s in sentences(piece)]
        for number, sentence in found:
            hits, opens = flagged_words(sentence), bool(OPENING.match(sentence)) and not sentence.endswith("?")
            words, count, flagged, openings = words + len(sentence.split()), count + 1, flagged + hits, openings + opens
            if listing and (hits or opens):
                print(f"{name}:{number}: {sentence}")
    per_1000, share = 1000 * flagged / max(1, words), openings / max(1, count)
    print(f"{group}: {len(files)} files, {words} words in {count} sentences: {flagged} flagged words ({per_1000:.2f} per 1,000), "
          f"{openings} flagged openings ({100 * share:.2f} %)")
    return per_1000 <= MOST_WORDS_PER_1000 and share <= MOST_OPENINGS


def main(arguments):
    names = [a for a in arguments if a != "--list"] or subprocess.run(
        ["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines()
    kept = [check(group, files, "--list" in arguments) for group, ends in GROUPS.items()
            if (files := [n for n in names if n.endswith(ends) and n not in GENERATED])]
    print(f"limits: {MOST_WORDS_PER_1000} flagged words per 1,000, {100 * MOST_OPENINGS:.0f} % of the sentences with a flagged opening")
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
