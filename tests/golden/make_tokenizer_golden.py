#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/: tiny tokenizers trained by Hugging Face `tokenizers` in the shapes of GPT-2 and Llama-3
(their own files may not be shipped), and the ids that it gives for texts that go wrong in other programs.

usage: make_tokenizer_golden.py        (in the repository root; texts come from the files named in CORPUS)
"""
import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

OUT = Path(__file__).parent / "tokenizer"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# Another pattern, for the path through the general regex engine (the shape of GPT-4o's).
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", "  a  b   c    ", "hello world", "Hello, World! It's 12:30.",
    "De molen draait: zo'n 's-Gravenhaagse coöperatie reïncarneert in Curaçao; 's avonds 't licht uit.",
    "Äiti söi Åbossa öljyä; hääyöaie. Die Straße heißt Größenwahn, ÜBERGRÖSSE und weiß.",
    "def f(x):\n    return {k: v for k, v in x.items() if k != 'ŝ'}\n\n\n\tif True:\r\n\t\tpass  # done\n",
    "I'm you're we've they'll he'd it's CAN'T DON'T WE'RE IT'S I'LL 'Sx 'lL'Re 'ſ 'ſs ’s can’t",
    "0 1 12 123 1234 12345 1.234,56 1e10 ²³ ½ Ⅷ ١٢٣ १२३ 12a34 x1y2",
    "emoji 😀😃 👩‍👩‍👧‍👦 👍🏽 🇳🇱🇪🇺 ❤️ ☃ ⚙️x", "日本語のテキスト、中文字符，한국어 텍스트. ไทยไม่มีช่องว่าง עברית العربية",
    "e\u0301 n\u0303 \u0301alone a\u0308o\u0308 \u200bzero\u200dwidth\ufeff \u00adsoft",
    "nbsp\u00a0here\u2003em\u3000ideographic\u202fnarrow\u205fmath\u1680ogham\u0085nel\u2028ls\u2029ps\u180emvs",
    "   \n  \n\n   x\n   ", "\r\r\n\n \r \n", "\t\t  \n\t x", "a\u00a0\u00a0b \u00a0c\u00a0 d", "x\x0b\x0cy\x1cz\x1fq",
    "\x00\x01\x02\x7f\x80\x9f", "!!!???...---===>>><<<:::;;;", "$100 + €200 = £300 %^&*()_+{}|", "a'b'c'd'e's", "''''s't",
    "Ab" * 40, " " * 100 + "x", "ab " * 30, "z" * 200, "\ufffd\ufffd \ufffdx", "\U0001105f\U000105c0\U0002ebf0 \U00031350",
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|>", "<|begin_of_text|>Hoi<|end_of_text|>", "<|endof", "<pad>  <pad>x<pad>",
    "  <mask>  tail", "word<word>s <word> (<word>) é<word> _<word>", "<code><codeblock>",
]
CORPUS = ["LICENSE", "tests/golden/make_tokenizer_golden.py"]


def corpus():
    for name in CORPUS:
        yield from (OUT.parents[2] / name).read_text(encoding="utf8").split("\n\n")
    yield from TEXTS * 3


def trained(pre, vocabulary, specials):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            min_frequency=2,
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def sequence(pattern, prefix=False):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
        ]
    )


def template(made, bos, eos=None):
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos} $A" + (f" {eos}" if eos else ""),
                special_tokens=[(t, made.token_to_id(t)) for t in (bos, eos) if t],
            ),
        ]
    )


def string_merges(made):
    """The older file form: merges as strings, no `type` in the model, empty affixes."""
    tree = json.loads(made.to_str())
    tree["model"]["merges"] = [" ".join(pair) for pair in tree["model"]["merges"]]
    del tree["model"]["type"]
    tree["model"]["continuing_subword_prefix"] = tree["model"]["end_of_word_suffix"] = ""
    return tree


def ignoring_merges(made, drop):
    """As Llama-3's: some tokens are reached only as whole pieces, because the merges to them are missing."""
    tree = json.loads(made.to_str())
    tree["model"]["ignore_merges"] = True
    tree["model"]["merges"] = tree["model"]["merges"][:-drop]
    return tree


def make():
    gpt2 = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), 900, ["<|endoftext|>"])
    yield "gpt2", json.loads(gpt2.to_str())
    yield "gpt2_strings", string_merges(gpt2)

    prefix = trained(pre_tokenizers.ByteLevel(add_prefix_space=True), 700, ["<|endoftext|>"])
    prefix.add_special_tokens([AddedToken("<pad>", rstrip=True), AddedToken("<mask>", lstrip=True, rstrip=True)])
    prefix.add_tokens([AddedToken("<word>", single_word=True), "<code>", "<codeblock>", AddedToken("Wor", normalized=False)])
    yield "gpt2_added", json.loads(prefix.to_str())

    llama3 = trained(sequence(LLAMA3), 900, [])
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    template(llama3, "<|begin_of_text|>")
    yield "llama3", ignoring_merges(llama3, 100)

    cased = trained(sequence(CASED, prefix=True), 600, ["<|endoftext|>"])
    template(cased, "<|endoftext|>", "<|endoftext|>")
    yield "cased", json.loads(cased.to_str())


def main():
    OUT.mkdir(exist_ok=True)
    for name, tree in make():
        text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
        made = Tokenizer.from_str(text)
        (OUT / f"{name}.json").write_text(text + "\n", encoding="utf8")
        cases = []
        for sample in TEXTS:
            made.encode_special_tokens = True
            plain = made.encode(sample, add_special_tokens=False).ids
            made.encode_special_tokens = False
            special = made.encode(sample, add_special_tokens=True).ids
            cases.append({"text": sample, "ids": plain, "special": special})
        golden = {"made_by": f"tokenizers {tokenizers.__version__}", "cases": cases}
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        (OUT / f"{name}.golden.json").write_text(
            f'{{"made_by": {json.dumps(golden["made_by"])}, "cases": [\n{lines}\n]}}\n', encoding="utf8"
        )


main()
