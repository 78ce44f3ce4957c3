#!/usr/bin/env python3
"""Writes tiny random models of every supported architecture, each with the logits that Hugging Face transformers computes from its files.

The logits come from the saved folder, loaded again in float32 with eager attention, so they follow the config.json in the folder.
Each model is also run with the feature that it tests switched off: a wrong reading must change the logits visibly.
"""

import argparse
import json
import shutil
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

HERE = Path(__file__).resolve().parent
VOCAB = 128
GREEDY = 16  # tokens decoded after each prompt
VISIBLE = 0.05  # smallest difference of logits that a feature must make
COMMON = dict(
    hidden_size=64, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCAB,
    max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=None, rms_norm_eps=1e-5, rope_theta=10_000.0,
)  # fmt: skip


@dataclass
class Model:
    """config: arguments besides COMMON; off: the keys of config.json as a reader that misses the feature takes them; patch: keys set, or
    dropped where None."""

    config_class: type
    config: dict = field(default_factory=dict)
    off: dict | None = None
    patch: dict = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    lengths: tuple = (30,)
    shard_size: str = "5GB"


def scaled(**scaling):
    """A Llama with RoPE scaling; its prompts end where the scaling is off and where it is well inside."""
    return Model(LlamaConfig, dict(rope_scaling=scaling), off=dict(rope_scaling=None, rope_parameters=None), lengths=(24, 60))


# sliding_window 16: the first prompt is longer than the window by a few tokens, the second by several windows.
QWEN2_SLIDES = dict(use_sliding_window=True, sliding_window=16, max_window_layers=1, num_hidden_layers=3)
FULL_LAYERS = dict(use_sliding_window=False, sliding_window=None, layer_types=None)
OLD_YARN = dict(type="yarn", factor=2.0, original_max_position_embeddings=64, attention_factor=1.2, beta_fast=8.0, beta_slow=2.0)
MODELS = {
    "llama_mha": Model(LlamaConfig, dict(num_key_value_heads=4, num_hidden_layers=1), dtype=torch.float32),
    "llama_gqa": Model(LlamaConfig, dict(num_key_value_heads=1), lengths=(1, 30)),
    "llama_fp16": Model(LlamaConfig, dtype=torch.float16),
    "llama_sharded": Model(LlamaConfig, shard_size="40KB"),
    "llama_tied": Model(LlamaConfig, dict(tie_word_embeddings=True)),
    "llama_bias": Model(LlamaConfig, dict(attention_bias=True), off=dict(attention_bias=False)),
    "llama_rope_linear": scaled(rope_type="linear", factor=4.0),
    "llama_rope_dynamic": Model(
        LlamaConfig, dict(rope_scaling=dict(rope_type="dynamic", factor=4.0), max_position_embeddings=48),
        off=dict(rope_scaling=None, rope_parameters=None), lengths=(24, 60),
    ),
    "llama_rope_llama3": scaled(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    ),
    "llama_rope_yarn": scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    "mistral": Model(MistralConfig, dict(sliding_window=16), off=dict(sliding_window=None), lengths=(20, 60)),
    "mistral_full": Model(MistralConfig, dict(sliding_window=None, head_dim=32, num_hidden_layers=1)),
    "qwen2": Model(
        # as the hub's folders have it: a window is named, but switched off
        Qwen2Config,
        patch=dict(use_sliding_window=False, sliding_window=16, max_window_layers=1, layer_types=None),
        off=dict(use_sliding_window=True), lengths=(40,),
    ),
    "qwen2_sliding": Model(Qwen2Config, QWEN2_SLIDES, off=FULL_LAYERS, lengths=(20, 60)),
    "qwen2_sliding_hub": Model(Qwen2Config, QWEN2_SLIDES | dict(num_hidden_layers=2), off=FULL_LAYERS, patch=dict(layer_types=None), lengths=(40,)),
    "qwen2_yarn": Model(
        # "type" is the older name of "rope_type"; explicit attention factor and ramp
        Qwen2Config, dict(tie_word_embeddings=True), patch=dict(rope_scaling=OLD_YARN),
        off=dict(rope_scaling=None, rope_parameters=None), lengths=(24, 60),
    ),
    "qwen3": Model(Qwen3Config, dict(head_dim=32)),
    "qwen3_tied": Model(Qwen3Config, dict(head_dim=24, tie_word_embeddings=True, attention_bias=True), off=dict(attention_bias=False)),
}  # fmt: skip
# config.json as transformers 5 writes it (rope_parameters instead of rope_theta and rope_scaling): made by that version only.
V5_MODELS = {
    "llama_v5": Model(
        LlamaConfig,
        dict(rope_parameters=dict(rope_type="llama3", rope_theta=50_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=64)),
        off=dict(rope_parameters=dict(rope_type="default", rope_theta=10_000.0)), lengths=(24, 60),
    ),
}  # fmt: skip


def randomize(model, seed):
    """Weights large enough that attention is peaked and logits differ by several units; norms and biases away from 1 and 0."""
    draw = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=draw)
        if "norm" in name:
            weight.copy_(1 + 0.3 * noise)
        elif name.endswith("bias"):
            weight.copy_(0.5 * noise)
        elif "embed_tokens" in name:
            weight.copy_(noise * (0.4 if model.config.tie_word_embeddings else 1.0))
        else:
            gain = 1.6 if "q_proj" in name or "k_proj" in name else 3.0 if "lm_head" in name else 1.0
            weight.copy_(noise * gain / weight.shape[-1] ** 0.5)


def edit_config(folder, changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None or k not in changes}, indent=1, sort_keys=True) + "\n")


def load(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def greedy(model, ids):
    """The next tokens, each from a pass over the whole sequence: no cache that could hide a difference."""
    ids = ids.clone()
    for _ in range(GREEDY):
        last = model(input_ids=ids[None], use_cache=False).logits[0, -1]
        best, next_best = last.topk(2).values
        assert best - next_best > 1e-3, "a tie: take another seed"
        ids = torch.cat([ids, last.argmax()[None]])
    return ids[-GREEDY:]


def goldens(folder, lengths, seed):
    draw = torch.Generator().manual_seed(seed + 1)
    model, tensors = load(folder), {}
    for i, length in enumerate(lengths):
        ids = torch.randint(VOCAB, (length,), generator=draw)
        tensors[f"{i}.ids"] = ids.int()
        tensors[f"{i}.logits"] = model(input_ids=ids[None], use_cache=False).logits[0].contiguous()
        tensors[f"{i}.greedy"] = greedy(model, ids).int()
    return tensors


def largest_difference(folder, tensors, dtype=torch.float32):
    """The largest difference of the last prompt's logits from those that the folder gives."""
    i = max(int(name.split(".")[0]) for name in tensors)
    other = load(folder, dtype)(input_ids=tensors[f"{i}.ids"].long()[None], use_cache=False).logits[0]
    return (other - tensors[f"{i}.logits"]).abs().max().item()


def feature_effect(folder, scratch, off, tensors):
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    if off.get("attention_bias") is False:  # a folder without the bias has no tensors for it
        weights = load_file(scratch / "model.safetensors")
        save_file({k: v for k, v in weights.items() if not k.endswith("bias")}, scratch / "model.safetensors", {"format": "pt"})
    edit_config(scratch, off)
    effect = largest_difference(scratch, tensors)
    shutil.rmtree(scratch)
    return effect


def make(name, spec, seed, out):
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(spec.config_class(**(COMMON | spec.config)))
    randomize(model, seed)
    model.to(spec.dtype).save_pretrained(folder, max_shard_size=spec.shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    edit_config(folder, spec.patch)
    tensors = goldens(folder, spec.lengths, seed)
    meta = {p: version(p) for p in ("torch", "transformers")}
    meta["float64_difference"] = f"{largest_difference(folder, tensors, torch.float64):.2g}"
    if spec.off is not None:
        effect = feature_effect(folder, out / "scratch", spec.off, tensors)
        assert effect > VISIBLE, f"{name}: without its feature the logits differ by {effect} only"
        meta["difference_without_feature"] = f"{effect:.2g}"
    save_file(tensors, folder / "golden.safetensors", meta)
    logits = tensors["0.logits"]
    probability = logits.softmax(-1).max(-1).values.mean().item()
    print(f"{name:20} logits std {logits.std():.2f}  mean top probability {probability:.2f}  {meta}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", nargs="*", choices=[*MODELS, *V5_MODELS], help="models to write anew (default all of this version)")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    mine = V5_MODELS if int(version("transformers").split(".")[0]) >= 5 else MODELS
    for seed, (name, spec) in enumerate(mine.items()):
        if not args.only or name in args.only:
            make(name, spec, seed=2026 + 10 * seed, out=args.out)


if __name__ == "__main__":
    main()
