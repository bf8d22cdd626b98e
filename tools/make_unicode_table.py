#!/usr/bin/env python3
"""Writes src/data/tokenizer/unicode_table.inc: the general category of every code point, as the regex engine inside the
installed Hugging Face `tokenizers` sees it (its Unicode version decides what splits, and the system's PCRE2 is older).

usage: make_unicode_table.py > src/data/tokenizer/unicode_table.inc
"""
import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn Cs".split()
# The last block of letters that each Unicode version added: tells which one the engine holds.
PROBES = [("17.0", 0x323B0), ("16.0", 0x10D50), ("15.1", 0x2EBF0), ("15.0", 0x31350), ("14.0", 0x10570)]


def main():
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    category = {c: "Cs" for c in range(0xD800, 0xE000)}
    for name in CATEGORIES[:-1]:
        keep = Split(Regex(r"[^\p{%s}]+" % name), behavior="removed", invert=False)
        for i in range(0, len(points), 4096):
            for piece, _ in keep.pre_tokenize_str("".join(map(chr, points[i : i + 4096]))):
                for char in piece:
                    assert ord(char) not in category, (char, name)
                    category[ord(char)] = name
    assert len(category) == 0x110000
    version = next(v for v, c in PROBES if category[c][0] == "L")
    runs, previous = [], None
    for c in range(0x110000):
        if category[c] != previous:
            previous = category[c]
            runs.append(c << 5 | CATEGORIES.index(previous))
    print(f"// Made by tools/make_unicode_table.py from tokenizers {tokenizers.__version__}. Do not edit.")
    print("// Runs of one general category: first code point << 5 | index of the category in kCategoryNames.")
    print(f'constexpr char kTableVersion[] = "{version}";')
    print("constexpr const char* kCategoryNames[] = {" + ", ".join(f'"{n}"' for n in CATEGORIES) + "};")
    print("// clang-format off")
    print("constexpr std::uint32_t kCategoryRuns[] = {")
    for i in range(0, len(runs), 16):
        print(",".join(str(r) for r in runs[i : i + 16]) + ",")
    print("};")
    print("// clang-format on")


main()
