"""Where src can be mutated: walks each file's syntax tree (libclang) and lists what could stand there instead.

A candidate is a place (bytes from `begin` to `end`), and what goes `before` and `after` the text there so that the mutant's text is
taken where molen_mutants::on(number) holds; "@" stands for the number. `key` names it in a way that survives when lines move.
"""
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess

import clang.cindex as ci
from clang.cindex import CursorKind as K
from clang.cindex import TypeKind as T

import compile_database

RESOURCES = "/usr/lib/llvm-14/lib/clang/14.0.6"
# Headers that clang has not (omp.h), behind all of its own.
AFTER = ["-idirafter", subprocess.run(["gcc", "-print-file-name=include"], capture_output=True, text=True).stdout.strip()]
READ_ANYWAY = re.compile("^reference to local binding")  # C++20 that clang 14 has not; the tree is whole
SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+", "*": "+", "/": "*", "%": "/",
           "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "|", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|=", "^=": "|="}
COMPARISONS = {"<", "<=", ">", ">=", "==", "!="}
ARITHMETIC = {T.BOOL, T.CHAR_S, T.SCHAR, T.UCHAR, T.SHORT, T.USHORT, T.INT, T.UINT, T.LONG, T.ULONG, T.LONGLONG, T.ULONGLONG, T.FLOAT, T.DOUBLE}
STATEMENTS = {K.COMPOUND_STMT, K.IF_STMT, K.FOR_STMT, K.WHILE_STMT, K.CXX_FOR_RANGE_STMT}
TRANSPARENT = {K.UNEXPOSED_EXPR}
# Calls whose absence or whose arguments' order no test can see.
UNSEEN = re.compile(r"\b(reserve|shrink_to_fit|fflush|madvise|posix_fadvise|notify_\w+|set_name|spdlog|at::set_num_threads)\b")
SYMMETRIC = re.compile(r"^(std::)?(min|max|minmax|swap|gcd|lcm|abs_diff|product|at::(equal|allclose|add|mul))$")
NEVER_ALONE = {K.STATIC_ASSERT, K.ENUM_CONSTANT_DECL, K.TEMPLATE_TYPE_PARAMETER, K.TEMPLATE_NON_TYPE_PARAMETER, K.ENUM_DECL}


class File:
    def __init__(self, root, name, unit):
        self.name = name
        self.data = (root / name).read_bytes()
        self.unit = unit
        self.macros = macro_calls(self.data.decode())
        self.found = {}

    def text(self, cursor):
        return self.data[cursor.extent.start.offset:cursor.extent.end.offset].decode()

    def usable(self, begin, end):
        text = self.data[begin:end].decode(errors="replace")
        return begin < end and "//" not in text and 'R"' not in text and "\n#" not in text and not any(b < end and begin < e for b, e in self.macros)

    def add(self, cursor, kind, new, before, after=")", constant=None):
        begin, end = cursor.extent.start.offset, cursor.extent.end.offset
        # A header that is included within the braces of extern "C" has its own offsets.
        if not all(map(ci.conf.lib.clang_Location_isFromMainFile, (cursor.extent.start, cursor.extent.end))) or not self.usable(begin, end):
            return
        line, last = self.data.count(b"\n", 0, begin) + 1, self.data.count(b"\n", 0, end) + 1
        source = self.data.splitlines()[line - 1].decode().strip()
        key = f"{self.name}: {source}: {kind}: {one_line(self.text(cursor))} -> {new}"
        while key in self.found and self.found[key]["begin"] != begin:
            key += "'"
        self.found[key] = {"key": key, "file": self.name, "line": line, "last_line": last, "kind": kind, "old": one_line(self.text(cursor)), "new": new,
                           "begin": begin, "end": end, "before": before, "after": after, "constant": constant}

    def choose(self, cursor, kind, new, constant=None):
        """An expression in whose place another may stand."""
        new = one_line(new)
        self.add(cursor, kind, new, f"(molen_mutants::on(@) ? ({new}) : (", "))", constant)


def macro_calls(text):
    """Where MACRO(...) stands: what is in it has no place of its own in the tree. Offsets are of bytes, as the tree's."""
    found = []
    for m in re.finditer(r"\b[A-Z][A-Z0-9_]{2,}\s*\(", text):
        depth, at = 1, m.end()
        while depth and at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        found.append((len(text[:m.start()].encode()), len(text[:at].encode())))
    return found


def one_line(text):
    return " ".join(text.split())


def arithmetic(cursor):
    return cursor.type.get_canonical().kind in ARITHMETIC


def binary(file, cursor, constant):
    left, right = list(cursor.get_children())[:2]
    a, b = file.text(left), file.text(right)
    head = file.data[cursor.extent.start.offset:left.extent.end.offset].decode()
    tail = file.data[right.extent.start.offset:cursor.extent.end.offset].decode()
    op = file.data[left.extent.end.offset:right.extent.start.offset].decode().strip()
    if op not in SWAPPED or not a or not b:
        return
    kind = "comparison" if op in COMPARISONS else "condition" if op in ("&&", "||") else "operator"
    if kind != "operator" or (arithmetic(left) and arithmetic(right)):
        file.choose(cursor, kind, f"{head} {SWAPPED[op]} {tail}", constant)
    if kind == "operator" and arithmetic(left) and arithmetic(right) and cursor.type.get_canonical() == left.type.get_canonical() and cursor.kind == K.BINARY_OPERATOR:
        file.choose(cursor, "operand dropped", head, constant)


def literal(file, cursor, constant):
    text = file.text(cursor)
    if cursor.kind == K.CXX_BOOL_LITERAL_EXPR and text in ("true", "false"):
        file.choose(cursor, "constant", "false" if text == "true" else "true", constant)
    elif cursor.kind == K.INTEGER_LITERAL and text[:1].isdigit():
        file.choose(cursor, "constant", f"{text} - 1" if text == "1" else f"{text} + 1", constant)
    elif cursor.kind == K.FLOATING_LITERAL and re.match(r"[0-9.]", text):
        file.choose(cursor, "constant", f"{text} + 1" if re.fullmatch(r"0?\.?0*f?", text) else f"{text} * 2", constant)


def call(file, cursor, parent):
    text = file.text(cursor)
    if UNSEEN.search(text.split("(")[0]) or "operator" in cursor.spelling:
        return
    arguments = [a for a in cursor.get_arguments() if a is not None and a.extent.start.offset < a.extent.end.offset]
    start = cursor.extent.start.offset
    if parent.kind not in (K.VAR_DECL, K.CONSTRUCTOR, K.FIELD_DECL) and text.endswith(")") and not SYMMETRIC.match(text.split("(")[0].split("<")[0].strip()):
        for x, y in zip(arguments, arguments[1:]):
            a, b = file.text(x), file.text(y)
            if a != b and "{" not in a + b and "std::move" not in a + b and x.type.get_canonical().spelling == y.type.get_canonical().spelling and x.extent.end.offset <= y.extent.start.offset:
                raw = text.encode()
                i, j, k, m = (p - start for p in (x.extent.start.offset, x.extent.end.offset, y.extent.start.offset, y.extent.end.offset))
                file.choose(cursor, "swapped arguments", (raw[:i] + b.encode() + raw[j:k] + a.encode() + raw[m:]).decode())
    for a in arguments:
        if arithmetic(a) and literal_like(a) is False:
            zeroed(file, a)


def literal_like(cursor):
    inner = cursor
    while inner.kind in TRANSPARENT or inner.kind == K.UNARY_OPERATOR:
        children = list(inner.get_children())
        if len(children) != 1:
            return False
        inner = children[0]
    return inner.kind in (K.INTEGER_LITERAL, K.FLOATING_LITERAL, K.CXX_BOOL_LITERAL_EXPR)


def zeroed(file, cursor):
    text = one_line(file.text(cursor))
    if text and "{" not in text:
        file.choose(cursor, "value dropped", f"std::remove_cvref_t<decltype({text})>{{}}")


def statement(file, cursor, kind):
    """A statement that is an expression: a call or an assignment, left out."""
    if not UNSEEN.search(file.text(cursor).split("(")[0]):
        file.add(cursor, kind, "nothing", "(molen_mutants::on(@) ? (void)0 : (void)(", "))")


def constant_of(file, cursor):
    """Where `constexpr` stands in a variable's declaration that the mutation must turn into `const`."""
    begin = cursor.extent.start.offset
    found = re.match(rb"(?:static\s+|inline\s+)*(constexpr)\b", file.data[begin:begin + 60])
    return [begin + found.start(1), begin + found.end(1)] if found else None


def is_constexpr_function(file, cursor):
    if cursor.kind not in (K.FUNCTION_DECL, K.CXX_METHOD, K.FUNCTION_TEMPLATE, K.CONSTRUCTOR):
        return False
    return re.search(rb"\bconst(expr|eval)\b", file.data[cursor.extent.start.offset:cursor.extent.end.offset].split(b"{")[0]) is not None


def walk(file, cursor, parent, constant=None):
    kind = cursor.kind
    if kind in NEVER_ALONE or is_constexpr_function(file, cursor):
        return
    if kind == K.VAR_DECL and b"constexpr" in file.data[cursor.extent.start.offset:cursor.extent.start.offset + 40]:
        constant = constant_of(file, cursor)
        if constant is None or not arithmetic(cursor):
            return
    if kind in (K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR) and len(list(cursor.get_children())) == 2:
        binary(file, cursor, constant)
    elif kind in (K.INTEGER_LITERAL, K.FLOATING_LITERAL, K.CXX_BOOL_LITERAL_EXPR):
        literal(file, cursor, constant)
    elif kind == K.CALL_EXPR:
        call(file, cursor, parent)
    elif kind == K.INIT_LIST_EXPR:
        for child in cursor.get_children():
            if arithmetic(child) and literal_like(child) is False:
                zeroed(file, child)
    children = list(cursor.get_children())
    if kind == K.IF_STMT and children and children[0].kind not in (K.DECL_STMT, K.VAR_DECL) and arithmetic(children[0]):
        file.add(children[0], "branch dropped", "false", "(!molen_mutants::on(@) && (", "))")
    if kind in STATEMENTS:
        body = children if kind == K.COMPOUND_STMT else children[1:] if kind == K.IF_STMT else children[-1:]
        for child in body:
            inner = child
            while inner.kind in TRANSPARENT and len(list(inner.get_children())) == 1:
                inner = next(inner.get_children())
            if inner.kind == K.CALL_EXPR:
                statement(file, child, "call dropped" if "operator" not in inner.spelling else "assignment dropped")
            elif inner.kind in (K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR):
                statement(file, child, "assignment dropped")
    for child in children:
        walk(file, child, cursor, constant)


def candidates_of(root, name, command):
    words, kept, skip = shlex.split(command), [], False
    for word in words[1:]:
        if skip:
            skip = False
        elif word in ("-o", "-c", "-include"):
            skip = word != "-c"
        elif not word.endswith(".cpp") and word not in ("-Winvalid-pch", "-fopenmp") and not word.startswith("-W"):
            kept.append(word)
    unit = ci.Index.create().parse(str(root / name), args=[*kept, "-resource-dir", RESOURCES, *AFTER, "-ferror-limit=0"])
    if any(d.severity >= ci.Diagnostic.Error and not READ_ANYWAY.search(d.spelling) and d.location.file and d.location.file.name.endswith(name) for d in unit.diagnostics):
        return []  # a part of the tree is missing: what clang 14 does not read is left alone
    file = File(root, name, unit)
    for cursor in unit.cursor.get_children():
        if ci.conf.lib.clang_Location_isFromMainFile(cursor.location):
            walk(file, cursor, unit.cursor)
    return list(file.found.values())


def kept_candidates(root, name, command):
    """Returns the mutants of an earlier run if neither the file nor this script has changed."""
    key = hashlib.sha256((root / name).read_bytes() + command.encode() + pathlib.Path(__file__).read_bytes()).hexdigest()[:24]
    kept = root / "build/mutants/candidates" / f"{key}.json"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(candidates_of(root, name, command)))
    return json.loads(kept.read_text())


def find(root, build, modules, only, jobs):
    work = []
    for entry in compile_database.entries(build):
        path = pathlib.Path(entry["file"])
        if root / "src" not in path.parents:
            continue
        name = str(path.relative_to(root))
        if not path.is_file() or name.endswith(("_test.cpp", "/molen_mutants.cpp")) or "/fake" in name or name.split("/")[1] not in modules or (only is not None and name not in only):
            continue
        work.append((root, name, entry["command"]))
    work = sorted({w[1]: w for w in work}.values(), key=lambda w: w[1])
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        results = list(pool.map(kept_candidates, *zip(*work)))
    unread = [w[1] for w, r in zip(work, results) if not r]
    if unread:
        print(f"mutate: nothing to mutate in {', '.join(unread)}", flush=True)
    return [c for r in results for c in r]
