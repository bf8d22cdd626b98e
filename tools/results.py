#!/usr/bin/env python3
"""Results as data: docs/results/records.jsonl holds what was measured, docs/results/metrics.json what each metric is and where its bounds lie.

usage: results.py add METRIC VALUE [--spread LOW HIGH] [--note TEXT] [--machine NAME --make MAKE] --command TEXT     appends a record of this machine and commit
                    (of another machine, such as one with a GPU, where it is named)
       results.py page      writes docs/RESULTS.md (the latest of each metric beside the best, and the peer) and the figures that README quotes
       results.py check     exit status 1 where page or README is not what the records say, or a record lacks what it needs (make lint)
       results.py judge METRIC VALUE     exit status 1 where the value misses the bound of this make of machine

A record: metric, value, spread ([lowest, highest] of its rounds, or null), unit, machine, make, commit, date, command, note; where the value comes from a table,
rows ({name: [median, lowest, highest] in seconds of each row}), which the page shows for the latest record. A metric: title, section, unit,
better (higher, lower, or none), peer, covers (paths it depends on), stale_after (commits that touch those), bounds ({make: {at_least or at_most, why}};
"any" stands for makes that are not named). README quotes the latest value of a metric between <!-- result METRIC --> and <!-- /result -->.
benches use it as a module: `report` prints, judges and records.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("MOLEN_ROOT") or pathlib.Path(__file__).parent.parent).resolve()
RECORDS = ROOT / "docs/results/records.jsonl"
METRICS = ROOT / "docs/results/metrics.json"
PAGE = ROOT / "docs/RESULTS.md"
README = ROOT / "README.md"
QUOTE = re.compile(r"(<!-- result (\S+) -->)(.*?)(<!-- /result -->)", re.S)
FIELDS = ("metric", "value", "spread", "unit", "machine", "make", "commit", "date", "command", "note")


def metrics():
    return json.loads(METRICS.read_text())


def records():
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def machine():
    """Returns the text of the machine for a record, and its make: vendor and family of the processor, on which bounds depend."""
    fields = dict(re.findall(r"^(vendor_id|cpu family|model name)\s*:\s*(.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)) if platform.system() == "Linux" else {}
    name = fields.get("model name", platform.machine()).strip()
    return f"{name}, {len(os.sched_getaffinity(0))} cores", f"{fields.get('vendor_id', platform.machine())}/{fields.get('cpu family', '?')}"


def commit():
    """HEAD, with a + where the tree is not what it holds."""
    def git(*args):
        return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout.strip()
    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench", "tests", "cmake") else "")


def bound_of(metric, make):
    return metric.get("bounds", {}).get(make) or metric.get("bounds", {}).get("any")


def missed(name, value, make=None):
    """A sentence where the value misses its bound; a value that is no number misses every one."""
    bound = bound_of(metrics()[name], make or machine()[1])
    if not bound:
        return None
    if "at_least" in bound and not value >= bound["at_least"]:
        return f"{name} is {value:.4g}, below its bound of {bound['at_least']:g} ({bound['why']})"
    if "at_most" in bound and not value <= bound["at_most"]:
        return f"{name} is {value:.4g}, above its bound of {bound['at_most']:g} ({bound['why']})"
    return None


def add(name, value, spread, command, note=None, rows=None, where=None):
    metric = metrics()[name]
    value, spread = short(value), spread and [short(x) for x in spread]
    here, make = where or machine()
    record = dict(zip(FIELDS, (name, value, spread, metric["unit"], here, make, commit(), datetime.datetime.now(datetime.timezone.utc).date().isoformat(), command, note))) | ({"rows": rows} if rows else {})
    with RECORDS.open("a") as f:
        f.write(json.dumps(record) + "\n")


def report(measured, command, record):
    """measured: (metric, value, spread) or (metric, value, spread, rows) each. Says which bounds are missed, and records all if so asked; returns whether all are kept."""
    wrong = [w for name, value, *_ in measured if (w := missed(name, value))]
    for sentence in wrong:
        print(f"missed: {sentence}", file=sys.stderr, flush=True)
    if record:
        for name, value, spread, *rows in measured:
            add(name, value, spread, command, rows=rows[0] if rows else None)
    return not wrong


def short(value):
    """Six significant digits of a measured figure; whole numbers as they are."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def number(value):
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{int(value):,}"


def cell(record, metric):
    spread = f" [{number(record['spread'][0])}, {number(record['spread'][1])}]" if record["spread"] else ""
    unit = {"x": "x", "%": " %", "": ""}.get(metric["unit"], " " + metric["unit"])
    return f"{number(record['value'])}{unit}{spread}", f"{record['machine']}; {record['commit']}, {record['date']}"


def best_of(rows, better):
    return {"higher": max, "lower": min}[better](rows, key=lambda r: r["value"]) if better != "none" else None


def page():
    described, rows = metrics(), records()
    out = ["# Results", "", "Written by `tools/results.py page` from `docs/results/records.jsonl`; `docs/results/metrics.json` says what each metric is and which bounds hold on which",
           "make of machine. The latest figure stands beside the best one, and beside the peer that it is compared with. [lowest, highest] are of the rounds of one run."]
    for section in dict.fromkeys(m["section"] for m in described.values()):
        out += ["", f"## {section}", "", "| what | latest | best | peer | command |", "|---|---|---|---|---|"]
        for name, metric in described.items():
            own = [r for r in rows if r["metric"] == name]
            if metric["section"] != section:
                continue
            if not own:
                out.append(f"| {metric['title']} | not measured yet | | {metric.get('peer') or ''} | |")
                continue
            latest, best = own[-1], best_of(own, metric["better"])
            value, where = cell(latest, metric)
            note = f" ({latest['note']})" if latest["note"] else ""
            best_text = "" if best is None else "the latest" if best["value"] == latest["value"] else "{} ({})".format(*cell(best, metric))
            if missed(name, latest["value"], latest["make"]):
                value = f"**{value}**, beyond the bound of {next(v for k, v in bound_of(metric, latest['make']).items() if k.startswith('at_'))}"
            out.append(f"| {metric['title']} | {value}{note}: {where} | {best_text} | {metric.get('peer') or ''} | `{latest['command']}` |")
        for name, metric in described.items():
            own = [r for r in rows if r["metric"] == name and metric["section"] == section]
            if own and "rows" in own[-1]:
                out += ["", f"Rows of \"{metric['title']}\" ({own[-1]['commit']}, {own[-1]['machine']}), seconds of a step:", "", "| row | median | lowest | highest |", "|---|---|---|---|"]
                out += [f"| {row} | {' | '.join(f'{s:.3f}' for s in seconds)} |" for row, seconds in own[-1]["rows"].items()]
    return "\n".join(out) + "\n"


def quoted(text):
    """`text` with the latest value of each metric that it quotes."""
    described, latest = metrics(), {r["metric"]: r for r in records()}
    return QUOTE.sub(lambda m: m[1] + (cell(latest[m[2]] | {"spread": None}, described[m[2]])[0] if m[2] in latest else "not measured yet") + m[4], text)


def faults():
    """Returns what the data lack, in sentences."""
    wrong, described = [], metrics()
    for i, r in enumerate(records(), 1):
        where = f"{RECORDS.name}:{i}"
        if tuple(k for k in r if k != "rows") != FIELDS:
            wrong.append(f"{where}: has {', '.join(r)}; a record has {', '.join(FIELDS)}, and rows where it comes from a table")
        elif any(len(row) != 3 or not row[1] <= row[0] <= row[2] for row in r.get("rows", {}).values()):
            wrong.append(f"{where}: each of its rows has a median, the lowest and the highest, in this order")
        elif r["metric"] not in described:
            wrong.append(f"{where}: no metric {r['metric']} in {METRICS.name}")
        elif r["unit"] != described[r["metric"]]["unit"]:
            wrong.append(f"{where}: in {r['unit']}, where {METRICS.name} has {described[r['metric']]['unit']}")
        elif not isinstance(r["value"], (int, float)) or r["value"] != r["value"] or (r["spread"] and not r["spread"][0] <= r["value"] <= r["spread"][1]):
            wrong.append(f"{where}: the value {r['value']} is no number within its spread {r['spread']}")
    for name, metric in described.items():
        wrong += [f"{METRICS.name}: {name} covers {path}, which is not in the tree" for path in metric["covers"] if not (ROOT / path).exists()]
    if not wrong and (not PAGE.exists() or PAGE.read_text() != page()):
        wrong.append(f"{PAGE.relative_to(ROOT)} is not what the records say; tools/results.py page writes it")
    if not wrong and README.exists():
        unknown = [m[2] for m in QUOTE.finditer(README.read_text()) if m[2] not in described]
        wrong += [f"{README.name}: quotes {name}, which is no metric of {METRICS.name}" for name in unknown]
        if not unknown and README.read_text() != quoted(README.read_text()):
            wrong.append(f"{README.name} quotes a figure that is not the latest record's; tools/results.py page writes it")
    return wrong


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = p.add_subparsers(dest="verb", required=True)
    for verb in ("add", "judge"):
        v = verbs.add_parser(verb)
        v.add_argument("metric")
        v.add_argument("value", type=lambda t: float(t) if re.search(r"[.en]", t) else int(t))
        if verb == "add":
            v.add_argument("--spread", nargs=2, type=float)
            v.add_argument("--note")
            v.add_argument("--machine", help="where the figure was measured, if it was not here")
            v.add_argument("--make", help="the make of that machine: vendor/family of its processor, or the name of its GPU")
            v.add_argument("--command", required=True)
    verbs.add_parser("page")
    verbs.add_parser("check")
    a = p.parse_args()
    if a.verb in ("add", "judge") and a.metric not in metrics():
        sys.exit(f"results: no metric {a.metric} in {METRICS.relative_to(ROOT)}")
    if a.verb == "add":
        if (a.machine is None) != (a.make is None):
            p.error("--machine and --make go together")
        add(a.metric, a.value, a.spread, a.command, a.note, where=a.machine and (a.machine, a.make))
    elif a.verb == "page":
        PAGE.write_text(page())
        if README.exists():
            README.write_text(quoted(README.read_text()))
    else:
        wrong = faults() if a.verb == "check" else list(filter(None, [missed(a.metric, a.value)]))
        print("\n".join(f"results: {w}" for w in wrong) or "results: ok", file=sys.stderr if wrong else sys.stdout)
        sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
