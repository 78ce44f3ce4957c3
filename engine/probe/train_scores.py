"""Trains two small models that score the cached tokens of the probe, for `weights:` of the recipes kvzap and locret. KVzap is linear in the
input of the attention layer (Jegou and Jeblick 2026, arXiv:2601.07891). Locret has two layers and takes query, key and value before RoPE
(Huang et al. 2024, arXiv:2410.01805).

cat /usr/lib/python3*/*.py > train.txt
python engine/probe/train_scores.py --text train.txt --words /usr/share/dict/american-english --out DIR

Prompts are those of tasks.py, hidden in the text given. Minutes on a core. Needs torch.
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from frozen import DIM, GROUP, HEADS, KV_HEADS, LAYERS, Frozen, joined, samples

# A task that is named twice has twice the prompts.
TASKS = ("niah", "multikey", "multiquery", "turns", "kvlines", "copy", "freq", "trace", "multivalue", "niah", "multikey", "turns", "copy")
LENGTHS = (512, 512, 768, 1024)
REPEAT = list(b"\n\nRepeat the previous context exactly.")


def per_kv_head(x):
    """The largest over rows and query heads of a group: [heads, rows, tokens] to [KV heads, tokens]."""
    return x.view(KV_HEADS, -1, x.shape[-1]).amax(1)


def kvzip_plus(model, layers, ids):
    """log of max over the tokens of `ids`, run after the prompt, and the group of attention * |W_o v| / |h|: [layers, KV heads, tokens]."""
    n, logits = layers[0].k.shape[1], {}
    _, after = model.go_on(layers, ids, see=lambda i, z: logits.__setitem__(i, z.clone()))
    scores = []
    for i, layer in enumerate(layers):
        w_o = model.w_o(i).view(-1, HEADS, DIM)
        size = torch.stack([(layer.v[h // GROUP] @ w_o[:, h].T).norm(dim=-1) for h in range(HEADS)])
        share = logits[i].softmax(-1)[:, :, :n] / after[i].hidden.norm(dim=-1)[None, :, None] * size[:, None]
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


def ridge(x, y, alpha=1.0):
    """Weights [outputs, inputs] and bias [outputs] of least squares with alpha * |weights|^2, the bias free."""
    x_mean, y_mean = x.mean(0), y.mean(0)
    x = x - x_mean
    w = torch.linalg.solve(x.T @ x + alpha * torch.eye(x.shape[1]), x.T @ (y - y_mean)).T
    return w, y_mean - w @ x_mean


class Heads(torch.nn.Module):
    """Locret's models of all layers at once, [layers, tokens, inputs] to [layers, tokens, KV heads]."""

    def __init__(self, inputs, middle):
        super().__init__()
        self.w1 = torch.nn.Parameter(torch.randn(LAYERS, inputs, middle) / inputs ** 0.5)
        self.w2 = torch.nn.Parameter(torch.randn(LAYERS, middle, KV_HEADS) / middle ** 0.5)

    def forward(self, x):
        return torch.bmm(F.silu(torch.bmm(x, self.w1)), self.w2)


def qkv(model, hidden):
    """[layers, tokens, (query heads + 2 KV heads) * DIM] before RoPE."""
    w = [torch.cat([model.w[f"layers.{i}.self_attn.{p}_proj.weight"] for p in "qkv"]) for i in range(LAYERS)]
    return torch.bmm(hidden, torch.stack(w).transpose(1, 2))


def fit(net, inputs, targets, steps, batch=512, lr=5e-3, smooth=0.0025):
    """Smooth L1 loss, and `smooth` times the squared difference of neighbours. Tokens are drawn in runs of 64."""
    opt = torch.optim.AdamW(net.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(steps):
        at = (torch.randint(0, inputs.shape[1] - 64, (batch // 64, 1)) + torch.arange(64)).flatten()
        out = net(inputs[:, at].float())
        runs = out.view(LAYERS, -1, 64, KV_HEADS)
        loss = F.smooth_l1_loss(out, targets[:, at].float()) + smooth * LAYERS * F.mse_loss(runs[:, :, 1:], runs[:, :, :-1])
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)
        opt.step()
        schedule.step()


def print_correlation(name, guess, truth):
    """Per layer, over [layers, tokens, KV heads]."""
    r = [torch.corrcoef(torch.stack((g.flatten(), t.flatten())))[0, 1].item() for g, t in zip(guess, truth)]
    print(f"{name}: held-out correlation per layer", " ".join(f"{x:.2f}" for x in r), flush=True)


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
    ap.add_argument("--middle", type=int, default=32, help="width between the two layers of Locret's models")
    ap.add_argument("--steps", type=int, default=400, help="of Locret's training")
    ap.add_argument("--seed", type=int, default=11)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--out", required=True, help="folder for kvzap.safetensors and locret.safetensors")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    model = Frozen(a.model)
    data = labelled(a, model)
    hidden, zap, locret = (torch.cat([d[name] for d in data], dim) for name, dim in (("hidden", 1), ("zap", 2), ("locret", 2)))
    zap, locret = zap.transpose(1, 2), locret.transpose(1, 2)
    tokens = hidden.shape[1]
    train = tokens - tokens // 10  # the last tenth is held out
    print(f"{len(data)} prompts, {tokens} tokens")
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    about = dict(prompts=str(len(data)), tokens=str(tokens), targets="repetition" if a.repeat else "answers", seed=str(a.seed))

    linear = [ridge(hidden[i, :train].float(), zap[i, :train].float()) for i in range(LAYERS)]
    print_correlation("kvzap", [hidden[i, train:].float() @ w.T + b for i, (w, b) in enumerate(linear)], zap[:, train:].float())
    save_file({f"layers.{i}.{name}": half(t) for i, (w, b) in enumerate(linear) for name, t in (("weight", w), ("bias", b))},
              out / "kvzap.safetensors", metadata=dict(method="KVzap, linear", **about))

    inputs = torch.cat([qkv(model, part.float()).half() for part in hidden.split(4096, 1)], 1)
    net = Heads(inputs.shape[2], a.middle)
    fit(net, inputs[:, :train], locret[:, :train], a.steps)
    with torch.no_grad():
        print_correlation("locret", net(inputs[:, train:].float()), locret[:, train:].float())
    save_file({f"layers.{i}.fc{n}.weight": half(w[i].T) for i in range(LAYERS) for n, w in ((1, net.w1), (2, net.w2))},
              out / "locret.safetensors", metadata=dict(method="Locret", **about))


if __name__ == "__main__":
    main()
