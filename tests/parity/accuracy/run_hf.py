#!/usr/bin/env python3
"""Grades the probe with the full cache by Hugging Face transformers: float32, CPU, one teacher-forced pass per sample -> results/full.csv.

--check N decodes N of the graded samples greedily, token by token with transformers' own cache, and demands the same first wrong bytes.
"""

import argparse
import csv
import time
from collections import defaultdict
from pathlib import Path

import torch
from grading import EVAL, MODEL, Table, grade, read_samples
from transformers import DynamicCache, LlamaForCausalLM

HERE = Path(__file__).resolve().parent


def graded_turns(model, sample):
    hidden = model.model(input_ids=sample.ids[None], use_cache=False).last_hidden_state[0]
    return [grade(model.lm_head(hidden[a - 1 : b - 1]), sample.ids[a:b]) for a, b in sample.answers]


def first_wrong_greedily(model, sample):
    """Per turn the first byte in which real greedy decoding differs from the answer, or -1; after a turn the true answer is in the cache."""
    cache, fed, found = DynamicCache(), 0, []
    for start, end in sample.answers:
        given, out = sample.ids[fed:start], []
        while len(out) < end - start:
            logits = model(input_ids=given[None], past_key_values=cache, logits_to_keep=1).logits
            out.append(logits[0, -1].argmax())
            given = out[-1][None]
        differs = (torch.stack(out) != sample.ids[start:end]).nonzero()
        found.append(int(differs[0]) if len(differs) else -1)
        cache.crop(start)
        fed = start  # the true answer is fed with the next question
    return found


def check(model, samples, count, graded):
    forced_of = defaultdict(list)
    for row in csv.DictReader(open(graded)):
        forced_of[int(row["sample"])].append(int(row["first_wrong"]))
    for sample in samples[:: len(samples) // count][:count]:
        forced = forced_of[sample.index]
        decoded = first_wrong_greedily(model, sample)
        print(f"sample {sample.index} {sample.task} {sample.length}: teacher forced {forced}, decoded {decoded}", flush=True)
        assert forced == decoded


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--eval", default=EVAL)
    parser.add_argument("--out", default=HERE / "results" / "full.csv")
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check", type=int, metavar="N", help="only compare N graded samples with greedy decoding")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation=args.attention).eval()
    samples = read_samples(args.eval)
    if args.check:
        return check(model, samples, args.check, args.out)
    table, start = Table(args.out, []), time.time()
    for sample in samples:
        if not table.has(sample):
            table.add(sample, graded_turns(model, sample))
    print(f"{len(samples)} samples, {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
