"""Records an attention trace (docs/attention-traces.md) from a Hugging Face model of the Llama, Qwen2, Qwen3 or Mistral kind.

    python traces/record_hf.py --model DIR --text FILE --decode-tokens 32 --out sample.safetensors

Needs torch, transformers and safetensors. Whatever the model's attention sees is what is recorded: it is called through an attention
function of our own, which gets Q, K and V after RoPE and before K and V are repeated for grouped queries.
"""

import argparse
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask


def fail(message):
    sys.exit(f"record_hf: {message}")


class Recorder:
    """Collects per layer {name: [tensor of new tokens, ...]} while the model runs; tensors are [tokens, heads, head_dim]."""

    def __init__(self, model, pre_rope, hidden):
        self.attention = [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "o_proj")]
        self.parts = [{} for _ in self.attention]
        self.pre_rope, self.hidden = pre_rope, hidden
        if not self.attention or not all(hasattr(m, name) for m in self.attention for name in ("q_proj", "k_proj", "v_proj", "head_dim")):
            fail("the model has no attention with q_proj, k_proj, v_proj and o_proj in every layer")
        AttentionInterface.register("kvlab_record", self.attend)
        AttentionMaskInterface.register("kvlab_record", sdpa_mask)
        model.set_attn_implementation("kvlab_record")
        for m in self.attention:
            m.register_forward_pre_hook(self.before, with_kwargs=True)
            if pre_rope:
                for kind in "qk":
                    source = getattr(m, f"{kind}_norm", None) or getattr(m, f"{kind}_proj")
                    source.register_forward_hook(lambda _, __, out, m=m, kind=kind: self.keep(m, f"pre_{kind}", out.reshape(-1, self.heads(m, kind), m.head_dim)))

    @staticmethod
    def heads(module, kind):
        return getattr(module, f"{kind}_proj").out_features // module.head_dim

    def keep(self, module, name, tensor):
        self.parts[module.layer_idx].setdefault(name, []).append(tensor.detach().to("cpu", copy=True))

    def before(self, module, args, kwargs):
        if self.hidden:
            states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            self.keep(module, "hidden", states[0])
        self.rotation = kwargs.get("position_embeddings")

    def attend(self, module, query, key, value, attention_mask, scaling=None, **kwargs):
        if query.shape[0] != 1:
            fail("one sample at a time")
        if scaling is not None and abs(scaling * module.head_dim**0.5 - 1) > 1e-6:
            fail(f"layer {module.layer_idx} scales its scores by {scaling}, a trace assumes 1 / sqrt(head_dim)")
        for name in ("softcap", "s_aux"):
            if kwargs.get(name) is not None:
                fail(f"layer {module.layer_idx} has '{name}', which a trace cannot say")
        new, seen = query.shape[2], sum(part.shape[0] for part in self.parts[module.layer_idx].get("q", []))
        window = kwargs.get("sliding_window")
        if window is not None and seen + new > window:
            fail(f"layer {module.layer_idx} sees {window} tokens of {seen + new}; record fewer than its sliding window holds")
        for name, tensor in (("q", query), ("k", key[:, :, -new:]), ("v", value[:, :, -new:])):
            self.keep(module, name, tensor[0].transpose(0, 1))
        if self.pre_rope:
            self.check_rotation(module)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)

    def check_rotation(self, module):
        """Tensors recorded before RoPE must become those recorded after it, by the model's own function."""
        rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
        if rotate is None or self.rotation is None:
            fail("--pre-rope: the model has no apply_rotary_pos_emb to check against")
        last = {name: parts[-1].unsqueeze(0) for name, parts in self.parts[module.layer_idx].items()}
        cos, sin = (part.to("cpu") for part in self.rotation)
        for name, turned in zip("qk", rotate(last["pre_q"], last["pre_k"], cos, sin, unsqueeze_dim=2)):
            error = (turned.float() - last[name].float()).abs().max() / last[name].float().abs().max()
            if error > (1e-4 if turned.dtype == torch.float32 else 2e-2):
                fail(f"--pre-rope: layer {module.layer_idx}: {name} is not the rotation of what its projection gave")

    def tensors(self, dtype):
        return {f"L{i}.{name}": torch.cat(parts).to(dtype).contiguous() for i, layer in enumerate(self.parts) for name, parts in layer.items()}


@torch.no_grad()
def run(model, ids, decode_tokens, chunk_tokens):
    """Prefill in chunks, then greedy decoding; stops before a token that ends the text. The ids that were run, and the chunks' ends."""
    ends = list(range(chunk_tokens, len(ids), chunk_tokens)) + [len(ids)] if chunk_tokens else [len(ids)]
    stop = model.generation_config.eos_token_id
    stop = set(stop if isinstance(stop, list) else [stop])
    cache, ids, begin = DynamicCache(config=model.config), list(ids), 0
    for end in ends:
        logits = model(torch.tensor([ids[begin:end]], device=model.device), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        begin = end
    for _ in range(decode_tokens):
        token = int(logits[0, -1].argmax())
        if token in stop:
            break
        ids.append(token)
        logits = model(torch.tensor([[token]], device=model.device), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return ids, ends


def rope_of(config):
    """(base, scaling) as a trace's metadata say them; transformers 5 keeps both in rope_parameters."""
    rope = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    if any(isinstance(value, dict) for value in rope.values()):
        fail("the layers have different RoPE parameters, a trace has one set")
    base = rope.pop("rope_theta", None) or getattr(config, "rope_theta", None)
    if base is None:
        fail("the model's config.json has no rope_theta")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("dynamic", "yarn"):  # transformers takes these lengths from outside of the scaling
        rope.setdefault("original_max_position_embeddings", config.max_position_embeddings)
    return str(float(base)), "none" if kind == "default" else json.dumps(rope, sort_keys=True)


def read_sample(args):
    """(ids, metadata) of --ids, a JSON list or an object {ids, task, needles: [[begin, end]], question_begin}, or of --text."""
    if args.text:
        with open(args.text, encoding="utf-8") as file:
            return AutoTokenizer.from_pretrained(args.model)(file.read())["input_ids"], {}
    with open(args.ids, encoding="utf-8") as file:
        sample = json.load(file)
    sample = {"ids": sample} if isinstance(sample, list) else sample
    if unknown := sorted(set(sample) - {"ids", "task", "needles", "question_begin"}):
        fail(f"{args.ids}: unknown key '{unknown[0]}'")
    metadata = {"task": sample.get("task", ""), "needles": ",".join(f"{begin}-{end}" for begin, end in sample.get("needles", []))}
    if "question_begin" in sample:
        metadata["question_begin"] = str(sample["question_begin"])
    return sample["ids"], metadata


def query_projections(attention, stored):
    if any(hasattr(m, "q_norm") for m in attention):
        fail("--w-q: the model norms its queries, which a trace cannot say; leave it out")
    parts = {f"W_q.L{i}": m.q_proj.weight for i, m in enumerate(attention)}
    parts |= {f"b_q.L{i}": m.q_proj.bias for i, m in enumerate(attention) if m.q_proj.bias is not None}
    return {name: tensor.detach().to("cpu", stored).contiguous() for name, tensor in parts.items()}


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder (or hub name) of the model")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ids", help="JSON file: a list of token ids, or {ids, task, needles, question_begin}")
    source.add_argument("--text", help="text file, UTF-8")
    parser.add_argument("--prompt-tokens", type=int, default=0, help="only so many tokens of the input; 0: all")
    parser.add_argument("--decode-tokens", type=int, default=32, help="decoded greedily after the prompt")
    parser.add_argument("--chunk-tokens", type=int, default=0, help="prefill in chunks of so many; 0: at once")
    parser.add_argument("--out", required=True)
    parser.add_argument("--pre-rope", action="store_true", help="also Q and K before RoPE")
    parser.add_argument("--hidden", action="store_true", help="also the input of every attention layer")
    parser.add_argument("--w-o", action="store_true", help="also the output projections")
    parser.add_argument("--w-q", action="store_true", help="also the projections to queries, and their biases")
    parser.add_argument("--dtype", choices=("f16", "f32"), default="f16", help="of the floats in the file")
    parser.add_argument("--device", default="cpu", help="cpu: computes in float32; cuda: in the model's own type")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse(argv)
    ids, metadata = read_sample(args)
    ids = ids[: args.prompt_tokens] if args.prompt_tokens else ids
    if not ids or len(ids) < args.prompt_tokens:
        fail(f"the input has {len(ids)} tokens, at least {max(1, args.prompt_tokens)} are needed")
    dtype = torch.float32 if args.device == "cpu" else "auto"
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).eval()
    recorder = Recorder(model, args.pre_rope, args.hidden)
    all_ids, ends = run(model, ids, args.decode_tokens, args.chunk_tokens)

    stored = torch.float16 if args.dtype == "f16" else torch.float32
    tensors = recorder.tensors(stored)
    if args.w_o:
        tensors |= {f"W_o.L{i}": m.o_proj.weight.detach().to("cpu", stored).contiguous() for i, m in enumerate(recorder.attention)}
    if args.w_q:
        tensors |= query_projections(recorder.attention, stored)
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            fail(f"tensor '{name}' has a value that {args.dtype} cannot hold")
    tensors["ids"] = torch.tensor(all_ids, dtype=torch.int32)
    rope_base, rope_scaling = rope_of(model.config.get_text_config())
    metadata |= {"format": "kvlab-attention-trace-1", "model": os.path.basename(os.path.normpath(args.model)), "prompt_tokens": str(len(ids)),
                 "chunk_ends": ",".join(map(str, ends)), "rope_base": rope_base, "rope_scaling": rope_scaling}
    save_file(tensors, args.out + ".part", metadata=metadata)
    os.replace(args.out + ".part", args.out)
    print(f"{args.out}: {len(recorder.attention)} layers, {len(ids)} prompt tokens and {len(all_ids) - len(ids)} decoded")


if __name__ == "__main__":
    main()
