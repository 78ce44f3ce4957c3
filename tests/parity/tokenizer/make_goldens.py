"""Trains one small tokenizer of each kind and records what Hugging Face tokenizers makes of texts.json.

    pip install tokenizers==0.22.2
    python tests/parity/tokenizer/make_goldens.py

Writes NAME/tokenizer.json and NAME/goldens.json here; deterministic. See README.md.
"""

import collections
import copy
import gzip
import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TEXTS = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def training_text():
    text = gzip.decompress((ROOT / "engine/probe/eval/val.txt.gz").read_bytes()).decode("utf-8")
    return text[:400_000].splitlines(keepends=True) + 20 * [t for t in TEXTS if len(t) < 500]


def train(tokenizer, vocab_size, **options):
    options.setdefault("initial_alphabet", pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **options)
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def byte_level_split(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def bos_template(token, token_id):
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, token_id)])


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    train(t, 1200, special_tokens=["<|endoftext|>"])
    return json.loads(t.to_str())


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = byte_level_split(LLAMA3)
    t.decoder = decoders.ByteLevel()
    train(t, 1200)
    t.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in ("begin_of_text", "end_of_text", "eot_id")])
    bos = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos_template("<|begin_of_text|>", bos)])
    config = json.loads(t.to_str())
    # Whole words that no merges lead to: only ignore_merges finds them.
    shift_added(config, ["Ġeverything", "Ġwhatsoever", "zzz"])
    return config


def shift_added(config, words):
    """Puts words at the end of the model's vocabulary; the added tokens move up."""
    vocab, moved = config["model"]["vocab"], {}
    size = len(vocab)
    for word in words:
        vocab[word] = len(vocab)
    for token in config["added_tokens"]:
        moved[token["id"]] = token["id"] + len(vocab) - size
        token["id"] = moved[token["id"]]
    for processor in config["post_processor"]["processors"]:
        for token in processor.get("special_tokens", {}).values():
            token["ids"] = [moved[i] for i in token["ids"]]


def qwen2():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = byte_level_split(QWEN2)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    train(t, 1200)
    t.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in ("endoftext", "im_start", "im_end")])
    t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False), AddedToken("caf\u00e9!")])
    config = json.loads(t.to_str())
    config["model"].update(continuing_subword_prefix="", end_of_word_suffix="")
    config["model"]["merges"] = [" ".join(pair) for pair in config["model"]["merges"]]
    return config


def sentencepiece(fuse_unk, byte_fallback):
    """Trained with Metaspace; the bytes' tokens come after <unk> <s> </s>, as SentencePiece has them."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    # The most frequent characters; ties are broken here, as the trainer breaks them by chance.
    counts = collections.Counter("".join(training_text()).replace(" ", "▁"))
    alphabet = sorted(counts, key=lambda c: (-counts[c], c))[:120]
    train(t, 1200, special_tokens=special, initial_alphabet=alphabet, limit_alphabet=len(alphabet))
    config = json.loads(t.to_str())
    config["added_tokens"] = config["added_tokens"][:3]
    return config


def llama2():
    config = sentencepiece(fuse_unk=True, byte_fallback=True)
    config["normalizer"] = json.loads(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]).__getstate__())
    config["pre_tokenizer"] = None
    strip = decoders.Strip(content=" ", left=1, right=0)
    chain = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    config["decoder"] = json.loads(chain.__getstate__())
    config["post_processor"] = json.loads(bos_template("<s>", 1).__getstate__())
    return config


def mistral():
    """The newer form: Metaspace before the first piece alone and without splitting, in place of the normalizer."""
    config = llama2()
    config["normalizer"] = None
    config["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return config


def metaspace():
    """Unknown characters one by one, and none of the bytes; the older key of Metaspace; a template with an end."""
    config = sentencepiece(fuse_unk=False, byte_fallback=False)
    config["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    config["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    both = processors.TemplateProcessing(single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    config["post_processor"] = json.loads(both.__getstate__())
    return config


def mixed():
    """Rare features: several splits, digits alone, a space before the text, flags of added tokens, other normalizers; no decoder."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s{3,}"), "  "), normalizers.Strip(left=False)])
    splits = [
        pre_tokenizers.Split(Regex("[\r\n]"), "merged_with_previous"),
        pre_tokenizers.Split("=", "merged_with_next"),
        pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "contiguous", invert=True),
        pre_tokenizers.Split("~", "removed"),
    ]
    t.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    train(t, 800)
    t.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True), AddedToken("[END]", rstrip=True, special=True)])
    t.add_tokens([AddedToken("import", single_word=True), AddedToken("ﬁn"), AddedToken("def", lstrip=True, rstrip=True, normalized=False)])
    t.add_tokens([AddedToken("  ", normalized=False)])
    return json.loads(t.to_str())


def goldens(config):
    t = Tokenizer.from_str(json.dumps(config))
    cases = []
    for text in TEXTS:
        ids = t.encode(text).ids
        plain = t.encode(text, add_special_tokens=False).ids
        decoded = [t.decode(ids, skip_special_tokens=False), t.decode(ids, skip_special_tokens=True)]
        cases.append({"ids": ids, "plain": plain, "decoded": decoded[0], "decoded_without_special": decoded[1]})
    return {"library": f"tokenizers {tokenizers.__version__}", "cases": cases}


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    for make in (gpt2, llama3, qwen2, llama2, mistral, metaspace, mixed):
        config = make()
        write(HERE / make.__name__ / "tokenizer.json", config)
        write(HERE / make.__name__ / "goldens.json", goldens(copy.deepcopy(config)))
        print(make.__name__, len(config["model"]["vocab"]), "tokens")


if __name__ == "__main__":
    main()
