#!/usr/bin/env python3
"""Grades the probe with caches that NVIDIA kvpress compressed: float32, CPU -> results/presses.csv.

A press never changes the pass that it compresses: layer l+1 sees the full cache of layer l's pass. So one prefill per sample and question mode
serves every press and ratio: a hook on each attention layer hands the layer's inputs and outputs to each press's own compress(). The rest of
the conversation is then fed teacher forced, in one pass over each compressed cache, without a press and at the true positions.
--check N compares N samples with kvpress as its pipeline runs it: `with press(model)`, then token by token.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from grading import EVAL, MODEL, Table, grade, read_samples
from kvpress import StreamingLLMPress
from transformers import AttentionInterface, DynamicCache, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "kvpress"))
from cases import CASES  # noqa: E402 (the presses and their arguments are those whose kept sets are compared)

# column `press` -> case; each has a recipe kvpress_<press> with the same arguments
PRESSES = {
    "snapkv": "snapkv", "streaming_llm": "streaming_llm", "tova": "tova", "expected_attention": "expected_attention", "knorm": "knorm",
    "keydiff": "keydiff", "lagkv": "lagkv_default", "pyramidkv": "pyramidkv_default", "adakv": "adakv",
}  # fmt: skip
RATIOS = (0.5, 0.75)  # the share that is dropped
QUESTIONS = ("compressed", "decoded")


def own_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    """Causal attention whose queries are the newest tokens of this layer's cache, and which leaves out what a press masked per head.

    transformers makes one mask for all layers from the length of the first, which lets queries see tokens after themselves where a press
    kept fewer tokens in a later layer (PyramidKV). kvpress fakes per-head eviction by keys that no query likes; here they are masked exactly.
    query [1, Hq, m, d], key, value [1, Hkv, n, d] -> [1, m, Hq, d].
    """
    m, n = query.shape[2], key.shape[2]
    mask = getattr(module, "dropped", None)  # bool [Hkv, keys of the prefill], or None
    if m == n:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None
    allowed = torch.ones(m, n, dtype=torch.bool).tril(n - m)[None]
    if mask is not None:
        hidden = F.pad(mask, (0, n - mask.shape[1]))
        allowed = (allowed & ~hidden[:, None]).repeat_interleave(module.num_key_value_groups, dim=0)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed[None], scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def load_model(folder, attention):
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()


def make_presses(model, cases, tokens):
    """{name: (press, its ratios)} of cases (name, ratio)."""
    presses = {}
    for name, ratio in cases:
        if name not in presses:
            presses[name] = CASES[PRESSES[name]].make(ratio, tokens, 0), []
            presses[name][0].post_init_from_model(model)
        presses[name][1].append(ratio)
    return presses


def compress(press, ratios, module, *inputs):
    """(keys, values) for each ratio; scores are computed once where they do not depend on it."""
    scorer = getattr(press, "press", press)
    original = scorer.score
    if not isinstance(scorer, StreamingLLMPress):
        scores = original(module, *inputs)
        scorer.score = lambda *_: scores.clone()  # AdaKV overwrites them
    for ratio in ratios:
        press.compression_ratio = ratio
        yield ratio, press.compress(module, *inputs)
    scorer.score = original


def dropped_mask(module, keys):
    """The keys that a press only masks, as bool [Hkv, n]; None where it cut the cache."""
    indices, module.masked_key_indices = getattr(module, "masked_key_indices", None), None
    if indices is None:
        return None
    mask = torch.zeros(keys.shape[1:3], dtype=torch.bool)
    mask[indices[1], indices[2]] = True
    return mask


def prefill(model, ids, cases):
    """-> logits of the last token [1, vocab]; per case (press, ratio) a list over layers of (keys, values, dropped)."""
    presses, caches = make_presses(model, cases, len(ids)), {case: [] for case in cases}

    def hook(module, _, kwargs, output):
        layer = kwargs["past_key_values"].layers[module.layer_idx]
        inputs = kwargs["hidden_states"], layer.keys, layer.values, output[1], kwargs
        for name, (press, ratios) in presses.items():
            for ratio, (keys, values) in compress(press, ratios, module, *inputs):
                caches[name, ratio].append((keys, values, dropped_mask(module, keys)))
        return output

    attentions = [layer.self_attn for layer in model.model.layers]
    for attention in attentions:
        attention.rotary_emb, attention.dropped = model.model.rotary_emb, None
    hooks = [attention.register_forward_hook(hook, with_kwargs=True) for attention in attentions]
    try:
        hidden = model.model(input_ids=ids[None], past_key_values=DynamicCache()).last_hidden_state[0, -1:]
    finally:
        for each in hooks:
            each.remove()
    return model.lm_head(hidden), caches


def resume(model, sample, start, layers):
    """Logits [n - 1 - start, vocab] of tokens start .. n-2, fed in one pass over a compressed cache of the first `start` tokens."""
    cache = DynamicCache()
    for index, (keys, values, dropped) in enumerate(layers):
        cache.update(keys, values, index)
        model.model.layers[index].self_attn.dropped = dropped
    ids = sample.ids[start:-1]
    positions = torch.arange(start, start + len(ids))
    return model(input_ids=ids[None], past_key_values=cache, position_ids=positions[None]).logits[0]


def graded_turns(model, sample, start, last, layers):
    """last: logits of the prefill's last token: it predicts the first byte of the answer where the question was prefilled."""
    logits = torch.cat([last, resume(model, sample, start, layers)])
    return [grade(logits[a - start : b - start], sample.ids[a:b]) for a, b in sample.answers]


def grade_sample(model, table, sample, question, names):
    wanted = [(name, ratio) for name in names for ratio in RATIOS if not table.has(sample, name, ratio, question)]
    if not wanted:
        return
    start = sample.prefilled(question)
    last, caches = prefill(model, sample.ids[:start], wanted)
    for (name, ratio), layers in caches.items():
        table.add(sample, graded_turns(model, sample, start, last, layers), name, ratio, question)


def first_wrong_by_pipeline(model, sample, question, name, ratio):
    """Per turn the first wrong byte as kvpress runs: the press around the prefill, then token by token at the true positions."""
    start, cache, found = sample.prefilled(question), DynamicCache(), []
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None
    with CASES[PRESSES[name]].make(ratio, start, 0)(model):
        hidden = model.model(input_ids=sample.ids[None, :start], past_key_values=cache).last_hidden_state
    logits, fed = model.lm_head(hidden[0, -1]), start
    for first, end in sample.answers:
        while fed < first:
            logits, fed = one_token(model, sample.ids[fed], cache, fed), fed + 1
        lengths = [layer.keys.shape[2] for layer in cache.layers]
        wrong = -1
        for i in range(end - first):
            token = logits.argmax()
            if token != sample.ids[first + i]:
                wrong = i
                break
            logits = one_token(model, token, cache, first + i)
        found.append(wrong)
        for layer, length in zip(cache.layers, lengths, strict=True):
            layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]
        fed = first  # the true answer is fed with the next question
    return found


def one_token(model, token, cache, position):
    at = torch.tensor([[position]])
    return model(input_ids=token.view(1, 1), past_key_values=cache, position_ids=at).logits[0, -1]


def check(args, samples):
    ours, theirs = load_model(args.model, "own"), load_model(args.model, "sdpa")
    differ = total = 0
    for sample in samples[:: max(1, len(samples) // args.check)][: args.check]:
        for question in args.question:
            start = sample.prefilled(question)
            last, caches = prefill(ours, sample.ids[:start], [(n, r) for n in args.only for r in RATIOS])
            for (name, ratio), layers in caches.items():
                graded = graded_turns(ours, sample, start, last, layers)
                shared = [g["first_wrong"] for g in graded]
                pipeline = first_wrong_by_pipeline(theirs, sample, question, name, ratio)
                total += len(shared)
                for turn, (a, b) in enumerate(zip(shared, pipeline, strict=True)):
                    if a != b:
                        differ += 1
                        where = f"sample {sample.index} turn {turn} {name} {ratio} {question}"
                        print(f"{where}: first wrong {a}, pipeline {b}, margin {graded[turn]['min_margin']}")
        print(f"sample {sample.index} {sample.task} {sample.length}: {total} turns compared, {differ} differ", flush=True)
    return differ > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--eval", default=EVAL)
    parser.add_argument("--out", default=HERE / "results" / "presses.csv")
    parser.add_argument("--only", nargs="*", choices=PRESSES, default=list(PRESSES))
    parser.add_argument("--question", nargs="*", choices=QUESTIONS, default=["compressed"])
    parser.add_argument("--lengths", nargs="*", type=int, default=[1024, 2048])
    parser.add_argument("--per", type=int, default=12, help="samples of each task and length")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check", type=int, metavar="N", help="only compare N samples with kvpress's own way")
    args = parser.parse_args()
    logging.getLogger("kvpress").setLevel(logging.ERROR)
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    AttentionInterface.register("own", own_attention)
    chosen, seen = [], {}
    for sample in read_samples(args.eval):
        seen[sample.task, sample.length] = seen.get((sample.task, sample.length), 0) + 1
        if sample.length in args.lengths and seen[sample.task, sample.length] <= args.per:
            chosen.append(sample)
    if args.check:
        return sys.exit(check(args, chosen))
    model, table, start = load_model(args.model, "own"), Table(args.out, ["press", "ratio", "question"]), time.time()
    for question in args.question:
        for done, sample in enumerate(chosen):
            grade_sample(model, table, sample, question, args.only)
            if done % 10 == 9:
                print(f"{question}: {done + 1} of {len(chosen)} samples, {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
