"""Makes Palu's bases (Chang et al. 2024, arXiv:2407.21118) for a byte-level model: per layer and KV head the main directions of K before
RoPE and of V on calibration text. For one head they are the left singular vectors of W_k C and W_v C, C C^T the second moment of the
attention layer's inputs: the whitened decomposition of the paper.

python engine/probe/train_palu.py --kvlab ./kvlab --model engine/probe --text engine/probe/eval/val.txt.gz --out weights/palu.safetensors
The last fifth of the pieces is held out, and the share of squares lost there is printed per layer. Needs numpy and safetensors.
"""
import argparse
import pathlib
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

from train_kvzap import add_text_arguments, pieces_of


def record(kvlab, model, text, folder):
    prompt, out = folder / "prompt.txt", folder / "trace.safetensors"
    prompt.write_bytes(text)
    subprocess.run([kvlab, "trace", "record", "--model", model, "--text", prompt, "--out", out, "--pre-rope", "--dtype", "f32"], check=True,
                   stdout=subprocess.DEVNULL)
    return load_file(out)


def moments(tensors, name):
    """[KV heads, channels, channels]"""
    x = tensors[name].astype(np.float64)
    return np.einsum("thc,thd->hcd", x, x)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_text_arguments(ap)
    ap.add_argument("--rank", type=int, default=32, help="of a head's K and of its V")
    a = ap.parse_args()
    sums = {}  # (layer, side): [for the basis, held out]
    pieces = pieces_of(ap, a)
    held_out = max(1, len(pieces) // 5)
    with tempfile.TemporaryDirectory() as name:
        for i, piece in enumerate(pieces):
            tensors = record(a.kvlab, a.model, piece, pathlib.Path(name))
            for layer in range(sum(key.endswith(".v") for key in tensors)):
                for side, key in (("k", f"L{layer}.pre_k"), ("v", f"L{layer}.v")):
                    sums.setdefault((layer, side), [0, 0])[i >= len(pieces) - held_out] += moments(tensors, key)
    out = {}
    for (layer, side), (own, other) in sums.items():
        basis = np.linalg.eigh(own)[1][:, :, ::-1][:, :, :a.rank].transpose(0, 2, 1)  # [KV heads, rank, channels]
        lost = [1 - np.trace(b @ m @ b.T) / np.trace(m) for b, m in zip(basis, other)]
        print(f"layer {layer} {side}: share of squares lost on held-out text", " ".join(f"{x:.3f}" for x in lost))
        out[f"layers.{layer}.{side}.basis"] = np.ascontiguousarray(basis, np.float16)
    pathlib.Path(a.out).parent.mkdir(parents=True, exist_ok=True)
    save_file(out, a.out, metadata={"method": "Palu, per head", "pieces": str(a.pieces), "piece_tokens": str(a.piece_tokens)})


if __name__ == "__main__":
    main()
