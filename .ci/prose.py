"""Checks the comments of headers for the words and openings that the style rules out.

usage: .ci/prose.py [--list] [FILE ...]      without files: all headers that git tracks
Exit status 1 if a limit is passed: 0.2 flagged words per 1,000, 2 % of the sentences with a flagged opening.
"""

import re
import subprocess
import sys

MOST_WORDS_PER_1000 = 0.2
MOST_OPENINGS = 0.02
# "behind" for after, "lies" and "stands" for is, "answers" for returns. The answers of a model are a term of the accuracy tests.
FLAGGED = re.compile(r"\b(behind|lies|stands|(?<!graded )(?<!right )(?<!wrong )(?<!model's )(?<!the )(?<!of )(?<!its )answers)\b", re.I)
OPENING = re.compile(r"^(What|Where|Whether|Of|Who)\b")


def comments(text):
    """Yields (line number, text) of each run of // comments; trailing comments are runs of their own."""
    run, began = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        whole = re.match(r"\s*//+\s?(.*)", line)
        if whole:
            began = began or number
            run.append(whole.group(1))
            continue
        if run:
            yield began, " ".join(run)
        run, began = [], 0
        trailing = re.search(r"[;{},)]\s*//\s?(.*)", line)
        if trailing:
            yield number, trailing.group(1)
    if run:
        yield began, " ".join(run)


def sentences(comment):
    return [s for s in re.split(r"(?<=[.!;])\s+", comment) if re.search(r"[A-Za-z]{2}", s)]


def main(arguments):
    listing = "--list" in arguments
    files = [a for a in arguments if a != "--list"] or subprocess.run(
        ["git", "ls-files", "*.h"], check=True, capture_output=True, text=True).stdout.split()
    words = count = flagged = openings = 0
    for name in files:
        with open(name, encoding="utf-8") as file:
            for number, comment in comments(file.read()):
                words += len(comment.split())
                for sentence in sentences(comment):
                    count += 1
                    hits = len(FLAGGED.findall(sentence))
                    opens = bool(OPENING.match(sentence)) and not sentence.endswith("?")
                    flagged += hits
                    openings += opens
                    if listing and (hits or opens):
                        print(f"{name}:{number}: {sentence}")
    per_1000, share = 1000 * flagged / max(1, words), openings / max(1, count)
    print(f"{len(files)} files, {words} words in {count} sentences: {flagged} flagged words ({per_1000:.2f} per 1,000, at most "
          f"{MOST_WORDS_PER_1000}), {openings} flagged openings ({100 * share:.1f} %, at most {100 * MOST_OPENINGS:.0f} %)")
    return int(per_1000 > MOST_WORDS_PER_1000 or share > MOST_OPENINGS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
