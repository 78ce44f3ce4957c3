"""Trains LESS's maps of queries and keys (Dong et al. 2024, arXiv:2402.09398) for the probe, a file for `weights:` of recipe less.

python engine/probe/train_less.py --text train.txt --words /usr/share/dict/american-english --out DIR/less.safetensors

Per layer, the output of attention over the tokens that h2o keeps and the state of the others is to be that of full attention, after W_o, at
queries that have more tokens before them than the budget. Prompts are those of tasks.py, in the text given. Needs torch.
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from frozen import DIM, GROUP, HEADS, KV_HEADS, LAYERS, Frozen, samples
from train_scores import TASKS, half

ROWS = 48  # queries of a prompt that are compared


class Maps(torch.nn.Module):
    """phi_q of the query heads, [heads, rows, features], and phi_k of the KV heads, for one layer."""

    def __init__(self, middle, features):
        super().__init__()
        def normal(heads, a, b):
            return torch.nn.Parameter(torch.randn(heads, a, b) / a ** 0.5)

        self.q1, self.q2 = normal(HEADS, DIM, middle), normal(HEADS, middle, features)
        self.k1, self.k2 = normal(KV_HEADS, DIM, middle), normal(KV_HEADS, middle, features)
        self.c = normal(KV_HEADS, features, features)
        self.s1, self.s2 = (torch.nn.Parameter(torch.full((1, KV_HEADS, 1, features), 1e-4)) for _ in range(2))

    def queries(self, q):
        return F.gelu(F.gelu(q @ self.q1) @ self.q2).abs()

    def keys(self, k):
        u = self.s1[0].abs() * F.gelu(F.gelu(k @ self.k1) @ self.k2)
        return (u + (u @ self.c) * self.s2[0]).abs()


def kept_by_h2o(share, rows, budget):
    """[KV heads, rows, tokens] from attention [heads, tokens, tokens]: half of the budget for the latest tokens of each row, half for the
    largest sums of attention up to the row."""
    n = share.shape[-1]
    sums = share.view(KV_HEADS, GROUP, n, n).mean(1).cumsum(1)[:, rows]
    age = rows[:, None] - torch.arange(n)
    recent = (age >= 0) & (age < budget // 2)
    sums = sums.masked_fill(recent | (age < 0), -1)
    return recent | torch.zeros_like(sums, dtype=torch.bool).scatter(-1, sums.topk(budget - budget // 2, -1).indices, True)


@torch.no_grad()
def examples(model, prompt, budget):
    """Per layer the chosen rows' queries, all keys and values, logits, kept tokens, and full attention's output after W_o."""
    _, layers = model.run(prompt)
    n, found = len(prompt), []
    rows = budget + torch.randperm(n - budget)[:ROWS].sort().values
    hidden_later = torch.ones(n, n, dtype=torch.bool).triu(1)
    for i, layer in enumerate(layers):
        z = (layer.q.reshape(KV_HEADS, -1, DIM) @ layer.k.transpose(1, 2)).view(HEADS, n, n) / DIM ** 0.5
        z.masked_fill_(hidden_later, -torch.inf)
        keep = kept_by_h2o(z.softmax(-1), rows, budget)
        out = layer.attended[:, rows].transpose(0, 1).reshape(len(rows), -1) @ model.w_o(i).T
        seen = ~hidden_later[rows]
        found.append(dict(q=layer.q[:, rows].clone(), k=layer.k, v=layer.v, z=z[:, rows].clone(), keep=keep, fold=seen & ~keep, out=out))
    return found


def attend(maps, x, w_o):
    """Output after W_o of attention over the kept tokens and, with maps, the state."""
    top = x["z"].masked_fill(~x["keep"].repeat_interleave(GROUP, 0), -torch.inf).amax(-1, keepdim=True)
    weight = torch.exp(x["z"] - top).masked_fill(~x["keep"].repeat_interleave(GROUP, 0), 0)
    if maps is not None:
        state = maps.queries(x["q"]) @ maps.keys(x["k"]).repeat_interleave(GROUP, 0).transpose(1, 2)
        weight = weight + state * x["fold"].repeat_interleave(GROUP, 0) * torch.exp(-top)
    out = weight @ x["v"].repeat_interleave(GROUP, 0) / weight.sum(-1, keepdim=True)
    return out.transpose(0, 1).reshape(out.shape[1], -1) @ w_o.T


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    ap.add_argument("--model", default="engine/probe")
    ap.add_argument("--text", required=True, help="running text to hide things in, one file")
    ap.add_argument("--words", default="/usr/share/dict/american-english", help="a word a line")
    ap.add_argument("--prompts", type=int, default=60, help="of which the last tenth is held out")
    ap.add_argument("--budgets", type=int, nargs="+", default=[64, 128], help="tokens that h2o keeps")
    ap.add_argument("--middle", type=int, default=64)
    ap.add_argument("--features", type=int, default=8)
    ap.add_argument("--steps", type=int, default=1000)
    ap.add_argument("--seed", type=int, default=21)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    model, source = Frozen(a.model), samples(a.text, a.words, TASKS, (448, 512), a.seed)
    data = [examples(model, next(source)[1], a.budgets[i % len(a.budgets)]) for i in range(a.prompts)]
    held, tensors = max(1, a.prompts // 10), {}
    for layer in range(LAYERS):
        maps, w_o = Maps(a.middle, a.features), model.w_o(layer)
        train, test = ([x[layer] for x in part] for part in (data[:-held], data[-held:]))
        scale = 1 / torch.stack([F.mse_loss(attend(None, x, w_o), x["out"]) for x in train]).mean()
        opt = torch.optim.AdamW(maps.parameters(), lr=1e-3, weight_decay=0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
        for step in range(a.steps):
            x = train[step % len(train)]
            opt.zero_grad()
            (scale * F.mse_loss(attend(maps, x, w_o), x["out"])).backward()
            torch.nn.utils.clip_grad_norm_(maps.parameters(), 1.0)
            opt.step()
            schedule.step()
        with torch.no_grad():
            error = [sum(F.mse_loss(attend(m, x, w_o), x["out"]) for x in test).item() / held for m in (None, maps)]
        print(f"layer {layer}: held-out error {error[1]:.3g}, without the state {error[0]:.3g}, ratio {error[1] / error[0]:.2f}",
              flush=True)
        named = dict(kernel_q_mat1=maps.q1, kernel_q_mat2=maps.q2, kernel_k_mat1=maps.k1, kernel_k_mat2=maps.k2, interaction_k=maps.c,
                     scalingD=maps.s1, scalingD2=maps.s2)
        tensors.update({f"layers.{layer}.{name}": half(t) for name, t in named.items()})
    out = pathlib.Path(a.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out, metadata=dict(method="LESS", prompts=str(a.prompts), budgets=str(a.budgets), seed=str(a.seed)))


if __name__ == "__main__":
    main()
