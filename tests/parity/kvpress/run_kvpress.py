#!/usr/bin/env python3
"""Records which tokens (or key channels) NVIDIA kvpress keeps on the probe model, for comparison with the kvpress_* recipes.

Presses get what their hooks would get: each layer's hidden states, cache and attention of one float32 prefill on the CPU, which no press
changes before a layer's hook runs. Those with a second pass or a hook of their own run as users run them, inside `with press(model)`.
The kept tokens are read back from the compressed cache by matching rows bit for bit with the uncompressed one, never from the press's
own bookkeeping.
"""

import argparse
import contextlib
import dataclasses
import json
import logging
from importlib.metadata import version
from pathlib import Path

import kvpress
import numpy as np
import torch
from cases import CASES, HEAD_SCORES, LAZY_THRESHOLD, RATIOS
from kvpress.presses import duo_attention_press, finch_press, kvzip_press, simlayerkv_press
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
BOS = 256
FORCED = 1e30  # scores above this were raised to the float32 maximum by the press: protected


class ByteTokenizer:
    """The probe's tokens are bytes; used in place of AutoTokenizer inside KVzip."""

    chat_template = None

    @classmethod
    def from_pretrained(cls, _):
        return cls()

    def encode(self, text, return_tensors="pt", add_special_tokens=False):
        assert return_tensors == "pt" and not add_special_tokens
        return torch.tensor([list(text.encode())], dtype=torch.long)


# KVzip and KVgrad score in passes after the prefill, so nothing is compressed inside the hook.
KVZIP = {name for name in CASES if name.startswith(("kvzip", "kvgrad"))}
# KVCompose as well, and DMS masks in a hook of its own: their sets are read from the cache and the masks at the end.
AT_THE_END = {name for name in CASES if name.startswith(("kvcompose", "dms"))}
# Their selections are not one topk over tokens: no boundary is recorded.
NO_EDGE = {"duo", "entropy_chunkkv", "entropy_knorm", "lukv"} | AT_THE_END


@contextlib.contextmanager
def replaced(owner, name, make):
    """Replaces owner.name by make(original) for the length of the block; static methods stay static."""
    raw = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
    wrapped = make(getattr(owner, name))
    setattr(owner, name, staticmethod(wrapped) if isinstance(raw, staticmethod) else wrapped)
    try:
        yield
    finally:
        setattr(owner, name, raw)


@dataclasses.dataclass
class TopK:
    """One call of topk: the scores as the press ranked them, and which entries it returned."""

    scores: np.ndarray
    picked: np.ndarray  # bool, same shape


def record_topk(calls):
    def make(original):
        def topk(scores, k, *args, **kwargs):
            out = original(scores, k, *args, **kwargs)
            picked = torch.zeros(scores.shape, dtype=torch.bool).scatter_(-1, out.indices, True)
            calls.append(TopK(scores.detach().clone().numpy(), picked.numpy()))
            return out

        return topk

    return make


def rows_kept(original, compressed):
    """bool [Hkv, n]: where each row of compressed [Hkv, m, d] occurs in original [Hkv, n, d]; each must occur exactly once."""
    kept = np.zeros(original.shape[:2], dtype=bool)
    for head in range(original.shape[0]):
        where = {row.tobytes(): i for i, row in enumerate(original[head])}
        assert len(where) == original.shape[1], "two tokens have the same key"
        at = [where[row.tobytes()] for row in compressed[head]]
        kept[head, at] = True
        assert kept[head].sum() == len(at), "a token was kept twice"
    return kept


def boundary(scores, kept, protected):
    """[smallest kept score, largest dropped score] per row, protected entries aside; NaN where there is none."""
    free = ~protected & (np.abs(scores) < FORCED)
    low = np.where(kept & free, scores, np.inf).min(axis=-1)
    high = np.where(~kept & free, scores, -np.inf).max(axis=-1)
    edge = np.stack([low, high], axis=-1).astype(np.float32)
    return np.where(np.isinf(edge), np.float32(np.nan), edge)


def first_stage_edge(scores, counts):
    """CriticalKV's other selection: the boundary of the first counts[h] tokens of each head by base score."""
    rank = (-scores).argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
    return boundary(scores, rank < counts[:, None], np.zeros(scores.shape, dtype=bool))


def protected_tokens(case, n, question):
    mask = np.zeros(n, dtype=bool)
    mask[: case.head] = True
    tail = question if case.tail < 0 else case.tail
    mask[n - tail :] = True
    return mask


def tightest(edges):
    """The edge with the smallest gap per head, of several independent selections [c, Hkv, 2]."""
    edges = np.stack(edges)
    gap = np.nan_to_num(edges[..., 0] - edges[..., 1], nan=np.inf)
    best = gap.argmin(axis=0)
    return edges[best, np.arange(edges.shape[1])]


class Recorder:
    """Takes the place of press.compress; keeps the kept set and the selection boundary of every layer."""

    def __init__(self, name, press, case, n, question):
        self.name, self.press, self.case = name, press, case
        self.original = press.compress
        self.protected = protected_tokens(case, n, question)
        self.keep, self.edge, self.edge_first = [], [], []

    def __call__(self, module, hidden_states, keys, values, attentions, kwargs):
        before_k, before_v = keys[0].clone().numpy(), values[0].clone().numpy()
        calls, seen = [], {}

        def save_unrotated(original):
            def rerotate(module, indices, keys):
                seen["keys"] = keys[0].gather(1, indices[0].unsqueeze(-1).expand(-1, -1, keys.shape[-1])).numpy()
                return original(module, indices, keys)

            return rerotate

        def save_window(original):
            def attention(*args):
                out = original(*args)
                seen["window"] = out.clone()
                return out

            return attention

        with (
            replaced(torch, "topk", record_topk(calls)),
            replaced(torch.Tensor, "topk", record_topk(calls)),
            replaced(finch_press.KeyRerotationPress, "rerotate_keys", save_unrotated),
            replaced(simlayerkv_press.SnapKVPress, "compute_window_attention", save_window),
        ):
            keys, values = self.original(module, hidden_states, keys, values, attentions, kwargs)
        after_k = seen.get("keys", keys[0].clone().numpy())
        keep = self.read_back(module, before_k, before_v, after_k, values[0].numpy())
        self.keep.append(keep)
        self.edge.append(self.selection_edge(calls, keep, seen.get("window")))
        if self.name == "critical_adakv":
            budgets = (keep.sum(axis=-1) * self.press.first_stage_ratio).astype(int)
            self.edge_first.append(first_stage_edge(calls[2].scores[0], budgets))
        elif self.name.startswith("criticalkv"):
            self.edge_first.append(first_stage_edge(calls[0].scores[0], calls[0].picked[0].sum(axis=-1)))
        return keys, values

    def read_back(self, module, before_k, before_v, after_k, after_v):
        if self.name == "think":
            keep = ~(after_k == 0).all(axis=1)
            assert np.array_equal(np.where(keep[:, None], before_k, 0), after_k) and np.array_equal(before_v, after_v)
            return keep
        masked = getattr(module, "masked_key_indices", None)
        if masked is not None:
            assert np.array_equal(before_k, after_k), "a masking press changed the cache"
            return complement(masked, before_k.shape[:2])
        keep = rows_kept(before_k, after_k)
        if self.name == "merging":
            return keep  # its values are sums
        for head in range(len(keep)):  # the values must be those of the same tokens, in any order
            assert sorted(r.tobytes() for r in before_v[head][keep[head]]) == sorted(r.tobytes() for r in after_v[head])
        return keep

    def selection_edge(self, calls, keep, window):
        heads = keep.shape[0]
        if self.name in NO_EDGE:
            return np.full((heads, 2), np.nan, dtype=np.float32)
        if self.name == "simlayerkv":
            if window is None:
                return np.full((heads, 2), np.nan, dtype=np.float32)
            mean = window.mean((0, 1, 2))
            score = mean[: self.press.n_initial].sum() + mean[-self.press.n_recent :].sum()
            return np.tile(np.float32([score.item(), LAZY_THRESHOLD]), (heads, 1))
        last = calls[-1]
        if self.name == "critical_adakv":
            return boundary(calls[-2].scores[0], keep, self.protected)  # per head, before the flattened re-selection
        if self.name.startswith("adakv"):
            return boundary(-last.scores.reshape(keep.shape), keep, self.protected)
        if self.name == "think":
            assert np.array_equal(last.picked[0], ~keep)
            return boundary(last.scores[0], keep, np.zeros(keep.shape, dtype=bool))
        if self.name.startswith("chunkkv") and last.scores.shape[-1] < keep.shape[1]:
            return self.chunk_edge(last, keep)
        if self.name == "finch_chunked" or self.name.startswith("chunk_"):
            return self.slices_edge(calls, keep)
        if self.name.startswith("block"):
            return boundary(last.scores[0], last.picked[0], np.zeros(last.picked[0].shape, dtype=bool))
        assert np.array_equal(last.picked[0], keep), "the cache and the selection disagree"
        return boundary(last.scores[0], keep, self.protected)

    def chunk_edge(self, call, keep):
        length = self.press.chunk_length
        of_token = np.arange(keep.shape[1]) // length
        assert np.array_equal(np.repeat(call.picked, np.bincount(of_token), axis=-1)[0], keep[0])
        inside_window = np.array([self.protected[of_token == c].all() for c in range(of_token[-1] + 1)])
        return np.tile(boundary(call.scores, call.picked, inside_window), (keep.shape[0], 1))

    def slices_edge(self, calls, keep):
        edges, start = [], 0
        for call in calls:
            part = slice(start, start + call.scores.shape[-1])
            assert np.array_equal(call.picked[0], keep[:, part])
            edges.append(boundary(call.scores[0], keep[:, part], self.protected[part]))
            start = part.stop
        return tightest(edges)


def complement(masked, shape):
    keep = np.ones(shape, dtype=bool)
    keep[masked[1].numpy(), masked[2].numpy()] = False
    assert (~keep).sum() == len(masked[1])
    return keep


def run_kvzip(model, press, ids):
    """KVzip masks after its scoring pass: keep and edge come from the masks and the scores it ends with."""
    scores = {}
    original = press.compress_post

    def compress_post(model):
        scores["value"] = press.score_val[:, 0].clone().numpy()
        original(model)

    press.compress_post = compress_post
    with press(model):
        model.model(input_ids=ids, past_key_values=DynamicCache())
    value = scores["value"]
    keep = np.stack([complement(layer.self_attn.masked_key_indices, value.shape[1:]) for layer in model.model.layers])
    return keep, boundary(value, keep, np.zeros(keep.shape, dtype=bool))


PREFILL = {}  # of the last prompt, by attention


def prefill(model, attn, ids):
    """The arguments of a press's hook for this prompt, per layer."""
    if PREFILL.get("ids") is not ids:
        PREFILL.clear()
        PREFILL["ids"] = ids
    if attn in PREFILL:
        return PREFILL[attn]
    calls = PREFILL[attn] = []

    def hook(module, _, kwargs, output):
        cache = kwargs["past_key_values"].layers[module.layer_idx]
        calls.append((module, kwargs["hidden_states"], cache.keys.clone(), cache.values.clone(), output[1], dict(kwargs)))
        return output

    hooks = []
    for layer in model.model.layers:
        layer.self_attn.rotary_emb = model.model.rotary_emb
        hooks.append(layer.self_attn.register_forward_hook(hook, with_kwargs=True))
    model.model(input_ids=ids, past_key_values=DynamicCache())
    for one in hooks:
        one.remove()
    return calls


def run_to_the_end(model, press, ids):
    """Presses that act in hooks of their own: the tokens that the cache and the masks hold afterwards."""
    plain, cache = DynamicCache(), DynamicCache()
    model.model(input_ids=ids, past_key_values=plain)
    with press(model):
        model.model(input_ids=ids, past_key_values=cache)
    keep = []
    for before, after, layer in zip(plain.layers, cache.layers, model.model.layers, strict=True):
        masked = layer.self_attn.masked_key_indices
        original = before.keys[0].numpy()
        keep.append(rows_kept(original, after.keys[0, :, : ids.shape[1]].numpy()) if masked is None else complement(masked, original.shape[:2]))
    return np.stack(keep)


def run_case(model, name, case, ratio, ids, question):
    """-> the tensors keep (bool [L, Hkv, n or d]) and edge (float32 [L, Hkv, 2]), and the press's arguments."""
    n = ids.shape[1]
    press = case.make(ratio, n, question)
    arguments = describe(press)
    model.set_attn_implementation(case.attn)
    for layer in model.model.layers:  # eager attention does not clear the masks of an earlier press
        layer.self_attn.masked_key_indices = None
    if name in KVZIP:
        keep, edge = run_kvzip(model, press, ids)
        return {"keep": keep, "edge": edge}, arguments
    if name in AT_THE_END:
        keep = run_to_the_end(model, press, ids)
        return {"keep": keep, "edge": np.full((*keep.shape[:2], 2), np.nan, dtype=np.float32)}, arguments
    if name.startswith("finch"):
        press.window_size = question  # as its hook finds the delimiter, and removes it
    target = press.press if name == "per_layer" else press
    recorder = Recorder(name, target, case, n, question)
    target.compress = recorder
    press.post_init_from_model(model)
    for layer, (module, hidden, keys, values, attentions, kwargs) in enumerate(prefill(model, case.attn, ids)):
        if name == "per_layer":
            target.compression_ratio = press.compression_ratios[layer]
        target.compress(module, hidden, keys.clone(), values.clone(), attentions, kwargs)
    assert len(recorder.keep) == model.config.num_hidden_layers
    out = {"keep": np.stack(recorder.keep), "edge": np.stack(recorder.edge)}
    if recorder.edge_first:
        out["edge_first"] = np.stack(recorder.edge_first)
    return out, arguments


def describe(press):
    """The press's class and arguments as plain text, inner presses included."""
    fields = {k: v for k, v in vars(press).items() if not k.startswith("_")}
    state = "score_val causal_mask_score compression_ratios context_length prefix_length start_idx end_idx"
    skip = {*state.split(), "compression_ratio", "key_channel_compression_ratio"}
    simple = (bool, int, float, str, list, kvpress.BasePress)
    named = [(k, v) for k, v in sorted(fields.items()) if k not in skip and isinstance(v, simple)]
    inner = [f"{k}={describe(v) if isinstance(v, kvpress.BasePress) else v}" for k, v in named]
    return f"{type(press).__name__}({', '.join(inner)})"


def check_tensors(model, ids):
    """Keys, values of the first and last 8 tokens of every layer, to tell a wrong press from a wrong forward pass."""
    model.set_attn_implementation("eager")
    cache = DynamicCache()
    model.model(input_ids=ids, past_key_values=cache)
    out = {}
    for i, layer in enumerate(cache.layers):
        for what, tensor in (("k", layer.keys), ("v", layer.values)):
            out[f"check.L{i}.{what}"] = tensor[0, :, :8].contiguous().numpy()
            out[f"check.L{i}.{what}_last"] = tensor[0, :, -8:].contiguous().numpy()
    return out


def prompt_ids(text):
    raw = text.encode()
    question = len(raw) - raw.rindex(b"\nQ:")
    return torch.tensor([[BOS, *raw]], dtype=torch.long), question


def record_prompt(model, text, names, ratios, with_check):
    ids, question = prompt_ids(text)
    n = ids.shape[1]
    tensors = {"ids": ids[0].numpy().astype(np.int32)}
    meta = {"tokens": str(n), "question_tokens": str(question), "bit_order": "little"}
    for package in ("kvpress", "torch", "transformers"):
        meta[package] = version(package)
    for name in names:
        for ratio in ratios:
            record, arguments = run_case(model, name, CASES[name], ratio, ids, question)
            keep = record.pop("keep")
            tensors[f"{name}.{ratio}.keep"] = np.packbits(keep, axis=-1, bitorder="little")
            tensors |= {f"{name}.{ratio}.{what}": value for what, value in record.items()}
            meta[f"{name}.{ratio}"] = f"{arguments} attn={CASES[name].attn}"
            counts = sorted(set(keep.sum(-1).ravel().tolist()))
            print(n, name, ratio, "kept", counts[0], "to", counts[-1], flush=True)
    if with_check:
        tensors |= check_tensors(model, ids)
    return n, tensors, meta


def merged(path, tensors, meta):
    """The file's content with the new records in place of the old ones."""
    with safe_open(path, "np") as old:
        assert np.array_equal(old.get_tensor("ids"), tensors["ids"]), f"{path} holds another prompt"
        return {name: old.get_tensor(name) for name in old.keys()} | tensors, old.metadata() | meta


def load_model(folder, rope):
    """The model, with the RoPE scaling of this name in rope_scaling.json, or its own where the name is empty."""
    config = LlamaConfig.from_pretrained(folder)
    if rope:
        config.rope_parameters = {**config.rope_parameters, **json.loads((HERE / "rope_scaling.json").read_text())[rope]}
    return LlamaForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=HERE.parents[2] / "engine" / "probe")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), help="presses to record anew (default all)")
    parser.add_argument("--rope", default="", help="a RoPE scaling of rope_scaling.json, in results/prompt_N.ROPE.safetensors")
    parser.add_argument("--ratios", type=float, nargs="*", default=RATIOS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="*", help="prompts of these lengths alone")
    args = parser.parse_args()
    logging.getLogger("kvpress").setLevel(logging.ERROR)
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    kvzip_press.AutoTokenizer = ByteTokenizer
    duo_attention_press.duo_attention_on_the_fly = lambda model: HEAD_SCORES
    model = load_model(args.model, args.rope)
    args.out.mkdir(parents=True, exist_ok=True)
    texts = [json.loads(line)["text"] for line in args.prompts.read_text().splitlines()]
    texts = [text for text in texts if not args.tokens or prompt_ids(text)[0].shape[1] in args.tokens]
    for text in sorted(texts, key=len):
        n, tensors, meta = record_prompt(model, text, args.only or list(CASES), args.ratios, with_check=text == min(texts, key=len))
        path = args.out / (f"prompt_{n}.{args.rope}.safetensors" if args.rope else f"prompt_{n}.safetensors")
        if args.only and path.exists():
            tensors, meta = merged(path, tensors, meta)
        save_file(tensors, path, metadata=meta)


if __name__ == "__main__":
    main()
