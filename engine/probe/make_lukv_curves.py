"""Makes LU-KV's curves (2026, arXiv:2602.08585) for a byte-level model: for each compression ratio the shares that layers and KV heads drop.

python engine/probe/make_lukv_curves.py --kvlab ./kvlab --model engine/probe --text engine/probe/eval/val.txt.gz --out weights/lukv_curves.safetensors
Our definition, after the paper's idea: the utility of a token is the attention that later text pays to it, averaged over pieces of text. A
head ranks its tokens by expected attention (epsilon 0.02), which leaves the utility of each rank; the ranks of all layers and heads then compete
for the tokens that the ratio allows. Needs numpy and safetensors.
"""
import argparse
import gzip
import json
import pathlib
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

SINKS, FUTURE_POSITIONS, EPSILON, LINES = 4, 512, 0.02, 99


def angles(positions, dim, base):
    return np.asarray(positions)[:, None] * base ** (-np.arange(0, dim, 2) / dim)


def turn(x, angle):
    """x [tokens, heads, dim] turned by angle [tokens, dim / 2], channel c with channel c + dim / 2."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def expected_attention(q, k, v, base):
    """Scores [tokens, KV heads] by the prompt's q [tokens, heads, dim] and k, v [tokens, KV heads, dim], as scorer 'expected_attention'."""
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    before = turn(q, -angles(range(tokens), dim, base))[SINKS:]
    future = angles(range(tokens, tokens + FUTURE_POSITIONS), dim, base)
    cos, sin = np.cos(future).mean(axis=0), np.sin(future).mean(axis=0)
    mean_turn = np.block([[np.diag(cos), np.diag(-sin)], [np.diag(sin), np.diag(cos)]])
    scores = np.zeros((tokens, kv_heads))
    for h in range(heads):
        mean = mean_turn @ before[:, h].mean(axis=0)
        covariance = mean_turn @ np.cov(before[:, h].T, bias=True) @ mean_turn.T
        keys = k[SINKS:, h // (heads // kv_heads)]
        z = keys @ mean / np.sqrt(dim) + np.einsum("id,de,ie->i", keys, covariance, keys) / (2 * dim)
        p = np.exp(z - z.max())
        scores[SINKS:, h // (heads // kv_heads)] += p / p.sum() / (heads // kv_heads)
    scores = (scores + EPSILON) * np.linalg.norm(v, axis=-1)
    scores[:SINKS], scores[-1] = np.inf, np.inf
    return scores


def utility(q, k, prompt):
    """Attention of the tokens after the prompt to the prompt's, mean over them and the query heads of a group, [prompt, KV heads]."""
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    mass = np.zeros((prompt, kv_heads))
    for h in range(heads):
        z = q[prompt:, h] @ k[:, h // (heads // kv_heads)].T / np.sqrt(dim)
        z[np.arange(tokens)[None] > np.arange(prompt, tokens)[:, None]] = -np.inf
        a = np.exp(z - z.max(axis=1, keepdims=True))
        mass[:, h // (heads // kv_heads)] += (a / a.sum(axis=1, keepdims=True))[:, :prompt].mean(axis=0) / (heads // kv_heads)
    return mass


def falling(x):
    """The nearest series that never rises (pool adjacent violators), so that the best ranks of a head come first."""
    blocks = []
    for value in x:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            last, n = blocks.pop()
            blocks[-1] = [(blocks[-1][0] * blocks[-1][1] + last * n) / (blocks[-1][1] + n), blocks[-1][1] + n]
    return np.concatenate([np.full(n, value) for value, n in blocks])


def curves_of(by_rank):
    """Shares dropped [99, layers, KV heads] of the utility of ranks [layers, KV heads, tokens]: the largest ones of all stay."""
    layers, heads, tokens = by_rank.shape
    flat = np.stack([falling(x) for x in by_rank.reshape(-1, tokens)])
    order = np.argsort(-flat.ravel(), kind="stable")
    lines = []
    for i in range(1, LINES + 1):
        kept = order[: round((1 - i / 100) * flat.size)]
        lines.append(1 - np.bincount(kept // tokens, minlength=layers * heads).reshape(layers, heads) / tokens)
    return np.stack(lines)


def record(kvlab, model, text, folder):
    prompt, out = folder / "prompt.txt", folder / "trace.safetensors"
    prompt.write_bytes(text)
    subprocess.run([kvlab, "trace", "record", "--model", model, "--text", prompt, "--out", out, "--dtype", "f32"], check=True,
                   stdout=subprocess.DEVNULL)
    return load_file(out)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--kvlab", default="./kvlab")
    ap.add_argument("--model", default="engine/probe")
    ap.add_argument("--text", required=True, help="calibration text, also packed as .gz")
    ap.add_argument("--pieces", type=int, default=12)
    ap.add_argument("--prompt-tokens", type=int, default=1500)
    ap.add_argument("--later-tokens", type=int, default=200, help="tokens after the prompt whose attention is the utility")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    config = json.loads((pathlib.Path(a.model) / "config.json").read_text())
    data = (gzip.open if a.text.endswith(".gz") else open)(a.text, "rb").read()
    size = a.prompt_tokens + a.later_tokens
    stride = (len(data) - size) // a.pieces
    if stride <= 0:
        ap.error(f"{a.text}: {len(data)} bytes, fewer than {a.pieces} pieces of {size} need")
    total = 0
    with tempfile.TemporaryDirectory() as name:
        for i in range(a.pieces):
            tensors = record(a.kvlab, a.model, data[i * stride:i * stride + size].decode(errors="ignore").encode(), pathlib.Path(name))
            by_rank = []
            for layer in range(config["num_hidden_layers"]):
                q, k, v = (tensors[f"L{layer}.{x}"].astype(np.float64) for x in "qkv")
                first = slice(0, a.prompt_tokens)
                order = np.argsort(-expected_attention(q[first], k[first], v[first], config["rope_theta"]), axis=0, kind="stable")
                by_rank.append(np.take_along_axis(utility(q, k, a.prompt_tokens), order, axis=0).T)
            total = total + np.stack(by_rank)
    curves = curves_of(total / a.pieces)
    for ratio in (50, 75, 90):
        print(f"{ratio} % dropped: heads keep {1 - curves[ratio - 1].max():.3f} to {1 - curves[ratio - 1].min():.3f} of the prompt")
    pathlib.Path(a.out).parent.mkdir(parents=True, exist_ok=True)
    save_file({"prune_ratios": curves.astype(np.float32)}, a.out,
              metadata={"method": "LU-KV", "pieces": str(a.pieces), "prompt_tokens": str(a.prompt_tokens), "later_tokens": str(a.later_tokens)})


if __name__ == "__main__":
    main()
