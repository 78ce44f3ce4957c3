"""Shared by run_hf.py and run_presses.py: the evaluation set as token ids, grading, and CSV files that a broken-off run resumes.

A greedy decoder and the true answer agree up to the first mistake, so an answer is right exactly if, with the true bytes fed, the largest
logit is the true byte at every place. Hence a whole conversation is graded by one teacher-forced pass.
"""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "engine" / "probe"
EVAL = MODEL / "eval" / "dev.jsonl"
BOS = 256


@dataclass
class Sample:
    index: int  # line of the JSONL file, from 0
    task: str
    length: int
    ids: torch.Tensor  # int64 [n]: <s>, prompt, then question and answer of each turn
    context: int  # tokens of <s> and prompt
    answers: list  # per turn: half-open range of ids

    def prefilled(self, question):
        """Tokens that are prefilled (and compressed): with the first question ("compressed") or without any ("decoded")."""
        return self.answers[0][0] if question == "compressed" else self.context


def read_samples(path=EVAL):
    samples = []
    for index, line in enumerate(Path(path).read_text().splitlines()):
        row = json.loads(line)
        ids = [BOS, *row["prompt"].encode()]
        context, answers = len(ids), []
        for turn in row["turns"]:
            ids += turn["question"].encode()
            start = len(ids)
            ids += turn["answer"].encode()
            answers.append((start, len(ids)))
        samples.append(Sample(index, row["task"], row["length"], torch.tensor(ids), context, answers))
    return samples


def grade(logits, answer):
    """logits float32 [m, vocab] at the places of the m answer bytes, answer int64 [m] -> the graded columns.

    min_margin is the smallest lead of the largest logit over the next, up to and including the first wrong byte: what decides the grade.
    """
    top = logits.topk(2).values
    wrong = (logits.argmax(-1) != answer).nonzero()
    first_wrong = int(wrong[0]) if len(wrong) else -1
    decisive = (top[:, 0] - top[:, 1])[: first_wrong + 1 if first_wrong >= 0 else None]
    log_p = logits.double().log_softmax(-1).gather(1, answer[:, None])
    return dict(
        exact=int(first_wrong < 0),
        neg_log2=f"{max(0.0, -log_p.sum().item() / math.log(2)):.5g}",
        answer_bytes=len(answer),
        first_wrong=first_wrong,
        min_margin=f"{decisive.min().item():.4g}",
    )


GRADED = ["exact", "neg_log2", "answer_bytes", "first_wrong", "min_margin"]


class Table:
    """A CSV file that is appended to; knows which rows it has."""

    def __init__(self, path, keys):
        self.columns = [*keys, "task", "length", "sample", "turn", *GRADED]
        self.keys, self.path, self.done = keys, Path(path), set()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            whole = self.path.read_text()
            self.path.write_text(whole[: whole.rfind("\n") + 1])  # a row that was cut off is made anew
            with self.path.open() as file:
                rows = list(csv.DictReader(file))
            assert not rows or list(rows[0]) == self.columns, f"{path} has other columns; remove it"
            self.done = {(*(row[k] for k in keys), int(row["sample"])) for row in rows}
        if not self.path.exists() or self.path.stat().st_size == 0:
            self.path.write_text(",".join(self.columns) + "\n")

    def has(self, sample, *keys):
        return (*map(str, keys), sample.index) in self.done

    def add(self, sample, graded_turns, *keys):
        """One row per turn, written together, so that a sample is there whole or not at all."""
        lines = ""
        for turn, graded in enumerate(graded_turns):
            row = [*keys, sample.task, sample.length, sample.index, turn, *(graded[k] for k in GRADED)]
            lines += ",".join(map(str, row)) + "\n"
        with self.path.open("a") as file:
            file.write(lines)
        self.done.add((*map(str, keys), sample.index))
