"""The probe in PyTorch with fixed weights, on the CPU: for the scripts that train small models beside it (train_scores.py,
train_less.py). Arrays are float32 of one sequence; heads come first, [heads, tokens, dim].
"""
from __future__ import annotations

import dataclasses
import random

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tasks import BOS, Corpus, build
from train import CFG, rope

HEADS, KV_HEADS, DIM, LAYERS = (CFG[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers"))
GROUP = HEADS // KV_HEADS


@dataclasses.dataclass
class Layer:
    """Tensors that a layer computed: the attention's input, then q, k before RoPE, v, q, k after it, and the attention's output before W_o."""
    hidden: torch.Tensor
    q0: torch.Tensor
    k0: torch.Tensor
    v: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    attended: torch.Tensor | None = None


def heads_of(x, n):
    return x.view(x.shape[0], n, DIM).transpose(0, 1)


def angles(first, count):
    inverse = CFG["rope_theta"] ** (-torch.arange(0, DIM, 2).float() / DIM)
    turns = torch.outer(torch.arange(first, first + count).float(), inverse)
    turns = torch.cat((turns, turns), -1)
    return turns.cos(), turns.sin()


def dense(layer, q, k, v):
    k, v = k.repeat_interleave(GROUP, 0), v.repeat_interleave(GROUP, 0)
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


class Frozen:
    def __init__(self, path):
        self.w = {name.removeprefix("model."): t.float() for name, t in load_file(f"{path}/model.safetensors").items()}

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CFG["rms_norm_eps"]) * self.w[name]

    def w_o(self, layer):
        return self.w[f"layers.{layer}.self_attn.o_proj.weight"]

    @torch.no_grad()
    def run(self, ids, first=0, attend=dense):
        """Logits [tokens, vocabulary] and the layers. attend(layer, q, k, v) returns [heads, tokens, dim]."""
        x = self.w["embed_tokens.weight"][torch.as_tensor(ids)]
        cos, sin = angles(first, len(ids))
        layers = []
        for i in range(LAYERS):
            at = f"layers.{i}."
            h = self.norm(x, at + "input_layernorm.weight")
            q0, k0, v = (heads_of(h @ self.w[f"{at}self_attn.{p}_proj.weight"].T, HEADS if p == "q" else KV_HEADS) for p in "qkv")
            q, k = rope(q0, cos, sin), rope(k0, cos, sin)
            out = attend(i, q, k, v)
            layers.append(Layer(h, q0, k0, v, q, k, out))
            x = x + out.transpose(0, 1).reshape(len(ids), -1) @ self.w_o(i).T
            h = self.norm(x, at + "post_attention_layernorm.weight")
            gate, up, down = (self.w[f"{at}mlp.{p}_proj.weight"] for p in ("gate", "up", "down"))
            x = x + (F.silu(h @ gate.T) * (h @ up.T)) @ down.T
        return self.norm(x, "norm.weight") @ self.w["lm_head.weight"].T, layers

    def go_on(self, past, ids, keep=None, see=None):
        """Tokens `ids` after those of the layers `past`, of which keep[layer] [KV heads, tokens] stay. see(layer, logits) gets the logits
        [heads, new tokens, past + new tokens] of each layer."""
        before = past[0].k.shape[1]

        def attend(i, q, k, v):
            k, v = torch.cat((past[i].k, k), 1), torch.cat((past[i].v, v), 1)
            z = (q.reshape(KV_HEADS, -1, DIM) @ k.transpose(1, 2)).view(HEADS, len(ids), -1) / DIM ** 0.5
            later = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
            z[:, :, before:].masked_fill_(later, -torch.inf)
            if keep is not None:
                z[:, :, :before].masked_fill_(~keep[i].repeat_interleave(GROUP, 0)[:, None], -torch.inf)
            if see is not None:
                see(i, z)
            return (z.softmax(-1).reshape(KV_HEADS, GROUP * len(ids), -1) @ v).view(HEADS, len(ids), DIM)

        return self.run(ids, before, attend)


def samples(text, words, tasks, lengths, seed):
    """An endless stream of (task, prompt, [(question, answer)]) as token ids; each context begins with <s>."""
    rng, corpus = random.Random(seed), Corpus(text, words)
    while True:
        task = rng.choice(tasks)
        prompt, pairs = build(task, rng, corpus, rng.choice(lengths))
        yield task, [BOS] + list(prompt), [(list(q), list(a)) for q, a in pairs]


def joined(pairs):
    """Questions and answers in one list, and which of its tokens are answers."""
    ids, is_answer = [], []
    for question, answer in pairs:
        ids += question + answer
        is_answer += [False] * len(question) + [True] * len(answer)
    return ids, torch.tensor(is_answer)
