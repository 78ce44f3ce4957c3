"""Trains Locret's retaining heads (Huang et al. 2024, arXiv:2410.01805) for the probe: per layer W2 silu(W1 [q; k; v]) predicts the largest
attention logit that queries of the answers will have for a token of the prompt, per KV head.

python engine/probe/train_locret.py --text engine/probe/eval/val.txt.gz --out engine/probe/weights/locret.safetensors
Labels and loss as in the paper: smooth L1, and 0.0025 times the squared difference of neighbouring predictions. Ours are the width between
the layers, the learning rate and the tasks (tasks.py) in place of long instructions. The last fifth of the prompts is held out, and the
correlation there is printed per layer. Needs torch, numpy and safetensors, and takes minutes on two cores.
"""
import argparse
import gzip
import pathlib
import random
import re
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from tasks import BOS, TASKS, Corpus, build
from train import CFG, Probe, rope

HEADS, KV_HEADS, DIM = CFG["num_attention_heads"], CFG["num_key_value_heads"], CFG["head_dim"]


def load_probe(folder):
    model = Probe()
    state = load_file(pathlib.Path(folder) / "model.safetensors")
    names = {n.replace("model.", "", 1).replace(".self_attn.", ".").replace(".mlp.", "."): t.float() for n, t in state.items()}
    model.load_state_dict(names)
    return model.eval().requires_grad_(False)


def corpus_of(path):
    """The text, and the words of four to nine lower-case letters that occur in it."""
    text = (gzip.open if path.endswith(".gz") else open)(path, "rb").read()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").write_bytes(text)
        words = sorted(set(re.findall(r"\b[a-z]{4,9}\b", text.decode(errors="ignore"))))
        (folder / "words").write_text("\n".join(words))
        return Corpus(str(folder / "text"), str(folder / "words"))


@torch.no_grad()
def sample(model, rng, corpus, total):
    """Per layer [q; k; v] before RoPE of the prompt's tokens, and labels [tokens, KV heads]."""
    prompt, pairs = build(rng.choice(TASKS), rng, corpus, total)
    ids, asked = [BOS, *prompt], []
    for question, answer in pairs:
        ids += question
        asked += range(len(ids) - 1, len(ids) + len(answer) - 1)  # the queries that predict the answer
        ids += answer
    n, t = asked[0] + 1, len(ids)
    angle = torch.outer(torch.arange(t).float(), CFG["rope_theta"] ** (-torch.arange(0, DIM, 2).float() / DIM))
    cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    x, features, labels = model.embed_tokens(torch.tensor([ids])), [], []
    for layer in model.layers:
        h = layer.input_layernorm(x)[0]
        q, k, v = layer.q_proj(h), layer.k_proj(h), layer.v_proj(h)
        features.append(torch.cat((q, k, v), -1)[:n].half())
        turned_q = rope(q.view(t, HEADS, DIM).transpose(0, 1), cos, sin)[:, asked]
        turned_k = rope(k.view(t, KV_HEADS, DIM).transpose(0, 1), cos, sin)[:, :n]
        logits = turned_q.view(KV_HEADS, -1, DIM) @ turned_k.transpose(1, 2) / DIM ** 0.5
        labels.append(logits.amax(1).T)
        x = layer(x, cos, sin)
    return torch.stack(features), torch.stack(labels)


class Heads(torch.nn.Module):
    """All layers' heads side by side."""

    def __init__(self, layers, middle):
        super().__init__()
        width = (HEADS + 2 * KV_HEADS) * DIM
        self.fc1 = torch.nn.Parameter(torch.randn(layers, width, middle) / width ** 0.5)
        self.fc2 = torch.nn.Parameter(torch.randn(layers, middle, KV_HEADS) / middle ** 0.5)

    def forward(self, x):
        return F.silu(x @ self.fc1) @ self.fc2


def train(heads, samples, steps, rate):
    optimizer = torch.optim.AdamW(heads.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        x, y = samples[step % len(samples)]
        guess = heads(x.float())
        loss = F.smooth_l1_loss(guess, y) + 0.0025 * (guess[:, 1:] - guess[:, :-1]).pow(2).mean(dim=(1, 2)).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(heads.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def report(heads, samples):
    guess = torch.cat([heads(x.float()) for x, _ in samples], 1)
    truth = torch.cat([y for _, y in samples], 1)
    for layer in range(truth.shape[0]):
        r = [np.corrcoef(guess[layer, :, h], truth[layer, :, h])[0, 1] for h in range(KV_HEADS)]
        print(f"layer {layer}: held-out correlation", " ".join(f"{x:.2f}" for x in r))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", default=str(pathlib.Path(__file__).parent))
    ap.add_argument("--text", required=True, help="running text to hide the tasks in, also packed as .gz")
    ap.add_argument("--prompts", type=int, default=60)
    ap.add_argument("--tokens", type=int, default=1024, help="of a prompt with its answers")
    ap.add_argument("--middle", type=int, default=16, help="width between the two layers; the paper's is 1024")
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--rate", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    rng, corpus, model = random.Random(a.seed), corpus_of(a.text), load_probe(a.model)
    samples = [sample(model, rng, corpus, a.tokens) for _ in range(a.prompts)]
    held_out = max(1, a.prompts // 5)
    heads = Heads(len(model.layers), a.middle)
    train(heads, samples[:-held_out], a.steps, a.rate)
    report(heads, samples[-held_out:])
    out = {}
    for layer in range(len(model.layers)):
        out[f"layers.{layer}.fc1.weight"] = heads.fc1[layer].detach().T.half().contiguous()
        out[f"layers.{layer}.fc2.weight"] = heads.fc2[layer].detach().T.half().contiguous()
    pathlib.Path(a.out).parent.mkdir(parents=True, exist_ok=True)
    save_file(out, a.out, metadata={"method": "Locret", "prompts": str(a.prompts), "tokens": str(a.tokens), "steps": str(a.steps)})


if __name__ == "__main__":
    main()
