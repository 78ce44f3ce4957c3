"""Kept tokens of kvpress's DecodingPress(KnormPress()) on recorded keys, in numpy (kvpress 0.5.5, presses/decoding_press.py)."""

import json

import numpy as np


def recorded_keys(path):
    """Keys of an attention trace with fp16 tensors, [layers, tokens, KV heads, head_dim], and the number of prompt tokens."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    layers = []
    while (entry := header.get(f"L{len(layers)}.k")) is not None:
        begin, end = (8 + length + at for at in entry["data_offsets"])
        layers.append(np.frombuffer(data[begin:end], dtype=np.float16).reshape(entry["shape"]))
    return np.stack(layers).astype(np.float64), int(header["__metadata__"]["prompt_tokens"])


def decoding_press_knorm(keys, prompt_tokens, compression_interval, target_size):
    """{(decode step, layer, KV head): positions held after a compression, ascending}."""
    layers, tokens, heads, _ = keys.shape
    norms = np.linalg.norm(keys, axis=-1)
    held = {(layer, head): np.arange(prompt_tokens) for layer in range(layers) for head in range(heads)}
    kept = {}
    for step in range(1, tokens - prompt_tokens + 1):
        for (layer, head), row in held.items():
            row = np.append(row, prompt_tokens + step - 1)
            if step % compression_interval == 0 and len(row) > target_size:
                shortest = np.argsort(norms[layer, row, head], kind="stable")[:target_size]
                row = np.sort(row[shortest])
                kept[step, layer, head] = row.tolist()
            held[layer, head] = row
    return kept
