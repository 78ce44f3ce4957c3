#!/usr/bin/env python3
"""CPU time that presses take for scoring and selecting on the prompt of 1,500 tokens: one thread, all layers, best of three, in ms.

The forward pass is not in it: each press gets what its hooks would get. KVLAB_PARITY_TIMES=1 parity_tests times the recipes in the same way.
"""

import argparse
import json
import time

import run_kvpress
import torch
from cases import CASES

# Their compress() does all the work; observed_attention gets its attention for nothing here.
TIMED = "streaming_llm knorm snapkv tova expected_attention pyramidkv lagkv keydiff chunkkv criticalkv cur non_causal adakv capkv finch"


def cpu_ms(model, name, ids, question):
    case = CASES[name]
    press = case.make(0.5, ids.shape[1], question)
    if name.startswith("finch"):
        press.window_size = question
    spent = 0.0
    for module, hidden, keys, values, attentions, kwargs in run_kvpress.prefill(model, case.attn, ids):
        arguments = (module, hidden, keys.clone(), values.clone(), None, kwargs)
        start = time.process_time()
        press.compress(*arguments)
        spent += time.process_time() - start
    return 1e3 * spent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presses", nargs="*", default=TIMED.split())
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    model = run_kvpress.load_model(run_kvpress.HERE.parents[2] / "engine" / "probe", "")
    lines = (run_kvpress.HERE / "prompts.jsonl").read_text().splitlines()
    text = next(line["text"] for line in map(json.loads, lines) if line["tokens"] == 1500)
    ids, question = run_kvpress.prompt_ids(text)
    for name in args.presses:
        model.set_attn_implementation(CASES[name].attn)
        print(f"{name},{min(cpu_ms(model, name, ids, question) for _ in range(3)):.2f}", flush=True)


if __name__ == "__main__":
    main()
