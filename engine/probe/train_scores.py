"""Trains two small models that score the probe's cached tokens: KVzap's, from the attention layer's input (Jegou and Jeblick 2026,
arXiv:2601.07891), and Locret's, from query, key and value before RoPE (Huang et al. 2024, arXiv:2410.01805). Both have two linear layers
for each layer of the probe; the files are for `weights:` of the recipes kvzap and locret.

cat /usr/lib/python3*/*.py > train.txt
python engine/probe/train_scores.py --text train.txt --words /usr/share/dict/american-english --out DIR

Prompts are those of tasks.py, in the text given. Half an hour on a core. Needs torch.
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from frozen import DIM, GROUP, HEADS, KV_HEADS, LAYERS, Frozen, joined, samples

TASKS = ("niah", "multikey", "multiquery", "turns", "kvlines", "copy", "freq", "trace", "multivalue")
LENGTHS = (512, 768, 1024)
REPEAT = list(b"\n\nRepeat the previous context exactly.")


def per_kv_head(x):
    """The largest over rows and query heads of a group: [heads, rows, tokens] to [KV heads, tokens]."""
    return x.view(KV_HEADS, -1, x.shape[-1]).amax(1)


def kvzip_plus(model, layers, ids, rows=slice(None)):
    """log of max over the rows of `ids`, run after the prompt, and the group of attention * |W_o v| / |h|: [layers, KV heads, tokens]."""
    n, logits = layers[0].k.shape[1], {}
    _, after = model.go_on(layers, ids, see=lambda i, z: logits.__setitem__(i, z.clone()))
    scores = []
    for i, layer in enumerate(layers):
        w_o = model.w_o(i).view(-1, HEADS, DIM)
        size = torch.stack([(layer.v[h // GROUP] @ w_o[:, h].T).norm(dim=-1) for h in range(HEADS)])
        share = logits[i].softmax(-1)[:, rows, :n] / after[i].hidden.norm(dim=-1)[None, rows, None] * size[:, None]
        scores.append(per_kv_head(share).clamp_min(1e-9).log())
    return torch.stack(scores), logits


def label(model, prompt, pairs, repeats):
    """Inputs and targets of a prompt's tokens. KVzap: KVzip+ scores, of the prompt's repetition or of questions and answers. Locret: the
    largest attention logit of queries that predict an answer."""
    _, layers = model.run(prompt)
    ids, is_answer = joined(pairs)
    predicts = torch.zeros(len(ids), dtype=torch.bool)
    predicts[:-1] = is_answer[1:]
    zap, logits = kvzip_plus(model, layers, ids)
    locret = torch.stack([per_kv_head(logits[i][:, predicts, :len(prompt)]) for i in range(LAYERS)])
    if repeats:
        zap, _ = kvzip_plus(model, layers, REPEAT + prompt[1:])
    return dict(hidden=torch.stack([layer.hidden for layer in layers]).half(), zap=zap.half(), locret=locret.half())


class Scores(torch.nn.Module):
    """Two linear layers for each layer of the model at once, [layers, tokens, inputs] to [layers, tokens, KV heads]."""

    def __init__(self, inputs, middle, act, has_bias):
        super().__init__()
        self.act = act
        self.w1 = torch.nn.Parameter(torch.randn(LAYERS, inputs, middle) / inputs ** 0.5)
        self.w2 = torch.nn.Parameter(torch.randn(LAYERS, middle, KV_HEADS) / middle ** 0.5)
        self.b1 = torch.nn.Parameter(torch.zeros(LAYERS, 1, middle), requires_grad=has_bias)
        self.b2 = torch.nn.Parameter(torch.zeros(LAYERS, 1, KV_HEADS), requires_grad=has_bias)

    def forward(self, x):
        return torch.baddbmm(self.b2, self.act(torch.baddbmm(self.b1, x, self.w1)), self.w2)


def qkv(model, hidden):
    """[layers, tokens, (query heads + 2 KV heads) * DIM] before RoPE."""
    w = [torch.cat([model.w[f"layers.{i}.self_attn.{p}_proj.weight"] for p in "qkv"]) for i in range(LAYERS)]
    return torch.bmm(hidden, torch.stack(w).transpose(1, 2))


def fit(net, inputs, targets, loss, steps, batch=1024, lr=5e-3, smooth=0.0):
    """Tokens are drawn in runs of 64 neighbours. Returns the loss and the correlation per layer on the last tenth of the tokens."""
    n = inputs.shape[1]
    held = n // 10
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(steps):
        at = (torch.randint(0, n - held - 64, (batch // 64, 1)) + torch.arange(64)).flatten()
        out = net(inputs[:, at].float())
        error = loss(out, targets[:, at].float())
        if smooth:
            runs = out.view(LAYERS, -1, 64, KV_HEADS)
            error = error + smooth * LAYERS * F.mse_loss(runs[:, :, 1:], runs[:, :, :-1])
        opt.zero_grad()
        error.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        schedule.step()
    with torch.no_grad():
        out, truth = net(inputs[:, n - held:].float()), targets[:, n - held:].float()
    r = [torch.corrcoef(torch.stack((out[i].flatten(), truth[i].flatten())))[0, 1].item() for i in range(LAYERS)]
    print("held-out correlation per layer:", " ".join(f"{x:.2f}" for x in r), flush=True)


def labelled(a, model):
    if a.labels and pathlib.Path(a.labels).exists():
        return torch.load(a.labels)
    source, data = samples(a.text, a.words, TASKS, LENGTHS, a.seed), []
    while len(data) < a.prompts:
        _, prompt, pairs = next(source)
        data.append(label(model, prompt, pairs, a.repeat))
        print(f"\r{len(data)} of {a.prompts} prompts", end="", flush=True)
    print()
    if a.labels:
        torch.save(data, a.labels)
    return data


def half(tensor):
    return tensor.detach().to(torch.bfloat16).contiguous()


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    ap.add_argument("--model", default="engine/probe")
    ap.add_argument("--text", required=True, help="running text to hide things in, one file")
    ap.add_argument("--words", default="/usr/share/dict/american-english", help="a word a line")
    ap.add_argument("--prompts", type=int, default=100)
    ap.add_argument("--repeat", action="store_true", help="KVzap's targets from a repetition of the prompt, as published; slow")
    ap.add_argument("--labels", help="file to keep the prompts' inputs and targets in; read if it is there")
    ap.add_argument("--middle", type=int, default=64, help="width between the two layers")
    ap.add_argument("--steps", type=int, default=1500)
    ap.add_argument("--seed", type=int, default=11)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--out", required=True, help="folder for kvzap.safetensors and locret.safetensors")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    model = Frozen(a.model)
    data = labelled(a, model)
    hidden, zap, locret = (torch.cat([d[name] for d in data], dim) for name, dim in (("hidden", 1), ("zap", 2), ("locret", 2)))
    tokens = hidden.shape[1]
    print(f"{len(data)} prompts, {tokens} tokens")
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    about = dict(prompts=str(len(data)), tokens=str(tokens), targets="repetition" if a.repeat else "answers", seed=str(a.seed))

    net = Scores(hidden.shape[2], a.middle, F.gelu, True)
    targets = zap.transpose(1, 2)
    net.b2.data = targets.float().mean(1, keepdim=True)
    fit(net, hidden, targets, F.mse_loss, a.steps)
    save_file({f"layers.{i}.{name}": half(t) for i in range(LAYERS) for name, t in
               (("0.weight", net.w1[i].T), ("0.bias", net.b1[i, 0]), ("2.weight", net.w2[i].T), ("2.bias", net.b2[i, 0]))},
              out / "kvzap.safetensors", metadata=dict(method="KVzap, two layers", **about))

    inputs = torch.cat([qkv(model, part.float()).half() for part in hidden.split(4096, 1)], 1)
    net = Scores(inputs.shape[2], a.middle, F.silu, False)
    fit(net, inputs, locret.transpose(1, 2), F.smooth_l1_loss, a.steps, smooth=0.0025)
    save_file({f"layers.{i}.fc{n}.weight": half(w[i].T) for i in range(LAYERS) for n, w in ((1, net.w1), (2, net.w2))},
              out / "locret.safetensors", metadata=dict(method="Locret", **about))


if __name__ == "__main__":
    main()
