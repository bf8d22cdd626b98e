#!/usr/bin/env python3
"""Holds molen's reading of licences to two libraries: DEP-5 files to python-debian, SPDX expressions to license-expression.

usage: licences.py LICENCE_TOOL
"""
import glob
import json
import logging
import random
import subprocess
import sys
import warnings

from boolean.boolean import ParseError
from debian.copyright import Copyright, MachineReadableFormatError, NotMachineReadableError
from license_expression import ExpressionError, get_spdx_licensing

warnings.simplefilter("ignore")  # python-debian says what it repairs
logging.disable(logging.WARNING)
SPDX = get_spdx_licensing()
# As a copyright file writes a licence, and as SPDX does.
NAMES = {"GPL-1+": "GPL-1.0-or-later", "GPL-2": "GPL-2.0-only", "Expat": "MIT", "Artistic": "Artistic-1.0", "ISC": "ISC",
         "BSD-3-clause": "BSD-3-Clause", "zlib": "Zlib", "Apache-2.0": "Apache-2.0"}


def ask(tool, verb, lines):
    done = subprocess.run([tool, verb], input="".join(line + "\n" for line in lines), capture_output=True, text=True, check=True)
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(lines), f"{verb}: {len(answers)} answers to {len(lines)} lines"
    return answers


def joined(rng, terms):
    """Terms joined by random operators, and the same as SPDX with all parentheses written out; `and` binds closer."""
    ops = [rng.choice(["and", "or"]) for _ in terms[1:]]
    runs = [[terms[0][1]]]
    for op, (_, spdx) in zip(ops, terms[1:]):
        if op == "and":
            runs[-1].append(spdx)
        else:
            runs.append([spdx])
    return ops, "(" + ") OR (".join(" AND ".join(run) for run in runs) + ")"


def declared(rng):
    """A licence as DEP-5 writes it, and what it means."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        names = rng.choices(sorted(NAMES), k=rng.randint(1, 3))
        ops, meaning = joined(rng, [(n, NAMES[n]) for n in names])
        text = names[0] + "".join(f" {op} {name}" for op, name in zip(ops, names[1:]))
        parts.append((text, "(" + meaning + ")"))
    ops, meaning = joined(rng, parts)
    return parts[0][0] + "".join(f", {op} {text}" for op, (text, _) in zip(ops, parts[1:])), meaning


def check_meaning(tool):
    rng = random.Random(1)
    cases = [declared(rng) for _ in range(120)]
    cases.append(("GPL-1+ or Artistic, and BSD-3-clause", "(GPL-1.0-or-later OR Artistic-1.0) AND BSD-3-Clause"))
    for (text, meaning), said in zip(cases, ask(tool, "declared", [text for text, _ in cases])):
        assert SPDX.is_equivalent(SPDX.parse(said, validate=True, strict=True), SPDX.parse(meaning)), f"{text}: {said}, not {meaning}"
    print(f"{len(cases)} declared licences mean what DEP-5 says")
    return len(cases)


def random_expression(rng):
    """Mostly good: identifiers, exceptions, parentheses; then perhaps one word is dropped, doubled or moved."""
    def term(depth):
        kind = rng.random()
        if depth < 4 and kind < 0.3:
            return ["(", *tree(depth + 1), ")"]
        if kind < 0.4:
            return ["GPL-2.0-or-later", "WITH", rng.choice(["Classpath-exception-2.0", "GCC-exception-3.1"])]
        return [rng.choice([*NAMES.values(), "LicenseRef-own.text"])]

    def tree(depth):
        words = term(depth)
        for _ in range(rng.randint(0, 3)):
            words += [rng.choice(["AND", "OR"]), *term(depth)]
        return words

    words = tree(0)
    fault = rng.random()
    at = rng.randrange(len(words))
    if fault < 0.2:
        del words[at]
    elif fault < 0.3:
        words.insert(at, words[at])
    elif fault < 0.4:
        words.insert(at, rng.choice(["(", ")", "AND", "WITH", "No-such-licence-1.0"]))
    return " ".join(words)


def is_good(text):
    words = text.split()
    # The library passes over an operator at the end, and over what stands behind a parenthesis without an operator.
    if words[-1:] in (["AND"], ["OR"]) or any(a == ")" and b not in (")", "AND", "OR") for a, b in zip(words, words[1:])):
        return False
    try:
        # LicenseRef-... is any name of one's own: for the library a licence that it does not know.
        SPDX.parse(text.replace("LicenseRef-own.text", "ISC"), validate=True, strict=True)
    except ExpressionError:
        return False
    except (ParseError, IndexError, TypeError, AssertionError):  # all but the first are how it falls over bad input
        return False
    return bool(text.strip())


def check_expressions(tool):
    rng = random.Random(2)
    cases = [random_expression(rng) for _ in range(600)]
    wrong = good = 0
    for text, said in zip(cases, ask(tool, "spdx", cases)):
        good += not said
        if is_good(text) != (not said):
            wrong += 1
            print(f"'{text}': {said or 'accepted'}; the library {'accepts' if is_good(text) else 'refuses'} it")
    assert not wrong and 150 < good < 540, f"{wrong} of {len(cases)} differ, {good} accepted"
    print(f"{len(cases)} expressions accepted or refused as by license-expression, {good} accepted")
    return len(cases)


def stanzas_of(path):
    """As python-debian reads them, or None."""
    try:
        with open(path, encoding="utf-8") as file:
            parsed = Copyright(file, strict=False)
            return parsed, [{"files": list(p.files), "licence": p.license.synopsis}
                            for p in parsed.all_files_paragraphs() if p.license and p.license.synopsis and p.files]
    except (NotMachineReadableError, MachineReadableFormatError, ValueError):
        return None


def check_files(tool):
    paths = sorted(glob.glob("/usr/share/doc/*/copyright"))[::3]  # a second of parsing
    compared, wrong = 0, []
    questions = []
    for path, said in zip(paths, ask(tool, "dep5", paths)):
        known = stanzas_of(path)
        if known is None:
            continue
        parsed, stanzas = known
        if said == "null" and not parsed.header.known_format():
            continue
        if json.loads(said) != stanzas:
            wrong.append(f"{path}:\n{said}\n{json.dumps(stanzas)}")
        compared += 1
        for stanza in stanzas[:4]:
            for pattern in stanza["files"][:2]:
                name = pattern.replace("\\", "").replace("*", "some/part").replace("?", "x")
                found = parsed.find_files_paragraph(name)
                questions.append((f"{path}\t{name}", found.license.synopsis if found else ""))
    assert not wrong, "\n".join(wrong[:20])
    for (question, expected), said in zip(questions, ask(tool, "match", [q for q, _ in questions])):
        assert said == expected, f"{question}: {said}, not {expected}"
    assert compared >= 50 and len(questions) >= 100, f"only {compared} copyright files to compare"
    print(f"{compared} copyright files read as by python-debian; {len(questions)} files in them with the same licence")
    return compared


def main():
    tool = sys.argv[1]
    print(f"licences: {check_meaning(tool) + check_expressions(tool) + check_files(tool)} checks passed")


main()
