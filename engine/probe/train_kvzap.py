"""Trains KVzap's linear model (Jegou and Jeblick 2026, arXiv:2601.07891) for a byte-level model: one ridge regression per layer, from the
attention layer's input to the logarithm of KVzip+ scores per KV head.

python engine/probe/train_kvzap.py --kvlab ./kvlab --model engine/probe --text engine/probe/eval/val.txt.gz --out weights/kvzap_linear.safetensors
Each piece of text is recorded with the pass that repeats it, which takes seconds. The last fifth of the pieces is held out, and the
correlation there is printed per layer. Needs numpy and safetensors.
"""
import argparse
import gzip
import pathlib
import subprocess
import tempfile

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

SINKS = 4


def kvzip_plus(tensors, layer, chunks):
    """log of max over the repeating queries and the group of attention * |W_o v| / |h|, [prompt tokens, KV heads].

    As scorer 'reconstruction' with norms: the softmax of a chunk is over the first tokens, the chunk's own, and the repetition so far.
    """
    q, own = tensors[f"pass.reconstruct.L{layer}.q"], tensors[f"pass.reconstruct.L{layer}.k"]
    hidden = np.linalg.norm(tensors[f"pass.reconstruct.L{layer}.hidden"], axis=1)
    k, v, w_o = tensors[f"L{layer}.k"], tensors[f"L{layer}.v"], tensors[f"W_o.L{layer}"]
    heads, kv_heads, dim = q.shape[1], k.shape[1], k.shape[2]
    scores = np.zeros((chunks[-1][3], kv_heads))
    for begin, end, ctx_begin, ctx_end in chunks:
        seen = np.r_[:min(SINKS, ctx_begin), ctx_begin:ctx_end]
        for h in range(heads):
            kv = h // (heads // kv_heads)
            z = q[begin:end, h] @ np.concatenate([k[seen, kv], own[begin:end, kv]]).T / np.sqrt(dim)
            z[:, len(seen):][np.triu_indices(end - begin, 1)] = -np.inf
            a = np.exp(z - z.max(axis=1, keepdims=True))
            a = (a / a.sum(axis=1, keepdims=True))[:, len(seen) - (ctx_end - ctx_begin):len(seen)]
            size = np.linalg.norm(v[ctx_begin:ctx_end, kv] @ w_o[:, h * dim:(h + 1) * dim].T, axis=1)
            best = (a / hidden[begin:end, None]).max(axis=0) * size
            scores[ctx_begin:ctx_end, kv] = np.maximum(scores[ctx_begin:ctx_end, kv], best)
    return np.log(np.maximum(scores, 1e-9))


def record(kvlab, model, text, folder):
    prompt, out = folder / "prompt.txt", folder / "trace.safetensors"
    prompt.write_bytes(text)
    subprocess.run([kvlab, "trace", "record", "--model", model, "--text", prompt, "--out", out, "--hidden", "--w-o", "--pass", "reconstruct",
                    "--dtype", "f32"], check=True, stdout=subprocess.DEVNULL)
    with safe_open(out, "numpy") as file:
        words = file.metadata()["pass.reconstruct.chunks"]
    chunks = [[int(x) for part in word.split(":") for x in part.split("-")] for word in words.split(",")]
    return load_file(out), chunks


def ridge(x, y, alpha=1.0):
    """Weights [outputs, inputs] and bias [outputs] of least squares with alpha * |weights|^2, the bias free."""
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    xc = x - x_mean
    w = np.linalg.solve(xc.T @ xc + alpha * np.eye(x.shape[1]), xc.T @ (y - y_mean)).T
    return w, y_mean - w @ x_mean


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--kvlab", default="./kvlab")
    ap.add_argument("--model", default="engine/probe")
    ap.add_argument("--text", required=True, help="training text, also packed as .gz")
    ap.add_argument("--pieces", type=int, default=30)
    ap.add_argument("--piece-tokens", type=int, default=1000)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    data = (gzip.open if a.text.endswith(".gz") else open)(a.text, "rb").read()
    stride = (len(data) - a.piece_tokens) // a.pieces
    if stride <= 0:
        ap.error(f"{a.text}: {len(data)} bytes, fewer than {a.pieces} pieces of {a.piece_tokens} need")
    inputs, targets = {}, {}
    with tempfile.TemporaryDirectory() as name:
        for i in range(a.pieces):
            piece = data[i * stride:i * stride + a.piece_tokens].decode(errors="ignore").encode()
            tensors, chunks = record(a.kvlab, a.model, piece, pathlib.Path(name))
            for layer in range(sum(key.startswith("W_o.") for key in tensors)):
                inputs.setdefault(layer, []).append(tensors[f"L{layer}.hidden"][:chunks[-1][3]].astype(np.float64))
                targets.setdefault(layer, []).append(kvzip_plus(tensors, layer, chunks))
    held_out = max(1, a.pieces // 5)
    out = {}
    for layer, x in inputs.items():
        train = slice(0, a.pieces - held_out)
        w, b = ridge(np.concatenate(x[train]), np.concatenate(targets[layer][train]))
        guess = np.concatenate(x[a.pieces - held_out:]) @ w.T + b
        truth = np.concatenate(targets[layer][a.pieces - held_out:])
        r = [np.corrcoef(guess[:, h], truth[:, h])[0, 1] for h in range(truth.shape[1])]
        print(f"layer {layer}: held-out correlation", " ".join(f"{x:.2f}" for x in r))
        out[f"layers.{layer}.weight"], out[f"layers.{layer}.bias"] = w.astype(np.float32), b.astype(np.float32)
    pathlib.Path(a.out).parent.mkdir(parents=True, exist_ok=True)
    save_file(out, a.out, metadata={"method": "KVzap, linear", "pieces": str(a.pieces), "piece_tokens": str(a.piece_tokens)})


if __name__ == "__main__":
    main()
