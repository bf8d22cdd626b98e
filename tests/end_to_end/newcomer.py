#!/usr/bin/env python3
"""Does what a newcomer does first: a model of one's own as README shows it, wrong configurations, a run that is looked at and extended.

usage: newcomer.py MOLEN
"""
import json
import pathlib
import re
import shlex

from harness import finish, metrics, ok, refused, run, shards, work

ROOT = pathlib.Path(__file__).resolve().parents[2]
shards()

# --- README: a model of your own -------------------------------------------------------------------------------------------
section = (ROOT / "README.md").read_text().split("## A model of your own\n")[1].split("\n## ")[0]
blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, re.M)
commands, config = blocks[0], re.sub(r"^    ", "", blocks[1], flags=re.M)
(work / "text.jsonl").write_bytes((work / "train.jsonl").read_bytes())
(work / "own.toml").write_text(config)
for line in commands.strip().splitlines():
    words = shlex.split(line.split("#")[0])
    assert words[0] == "molen", line
    out = run(*words[1:])
steps = metrics("own")
ok("README's model of one's own trains to its end the first time", max(steps) == 50 and steps[50]["loss"] < steps[1]["loss"] - 1, steps[50])
resolved = (work / "runs/own/config.toml").read_text()
entries = json.loads((work / "data/train/manifest.json").read_text())["tokenizer"]["vocabulary"]
for key, value, why in (("vocabulary", entries, "derived: data.tokenizer"), ("max_sequence", 64, "derived: data.sequence_length"), ("warmup", '"5 steps"', "derived: of train.until")):
    ok(f"{key} follows from what is said", re.search(rf"^{key} = {value} +# {why}$", resolved, re.M), resolved)
ok("molen config shows them", re.search(rf"^vocabulary = {entries} +# derived: data.tokenizer$", run("config", "show", "own.toml").stdout, re.M))

# --- wrong configurations ----------------------------------------------------------------------------------------------------
(work / "wrong.toml").write_text("""[model]
family = "gpt"
layers = "two"
n_embd = 64
[data]
train = "data"
[batch]
micro_batch = 2
[optimizer]
learning_rate = 1e-3
[schedule]
warmup = "90 steps"
[train]
until = "60 steps"
[parallel]
sharding = "full_shard"
""")
refused("all errors of a file at once", "train", "wrong.toml", says=["8 errors:", "wrong.toml:3: model.layers: expected a positive integer", "model.hidden", "batch.micro", "optimizer.lr", "wrong.toml:12: schedule.warmup: 90 steps is longer than train.until = 60 steps"])
refused("a folder that holds the splits", "train", "own.toml", "--set", "run.name=x", "--set", "data.train=data", says=["data.train: data: no manifest.json there; data/train has its own: name that"])
refused("nowhere", "train", "own.toml", "--set", "run.name=x", "--set", "data.train=nowhere", "--set", "data.tokenizer=lost.json", "--set", "model.vocabulary=400", says=["2 errors:", "nowhere: there is nothing of this name", "lost.json: there is no such file"])
refused("a wrong path in a run that resumes", "train", "own.toml", "--set", "data.train=nowhere", says=["--set data.train: nowhere: there is nothing of this name"])
said = run("tokenizer", "train", "text.jsonl", "--vocabulary", 4000, "--output", "small.json").stderr
made = int(re.search(r"vocabulary (\d+)", said)[1])
ok("a tokenizer that came out smaller says so", made < 4000 and "fewer entries than the 4000 asked for" in said and "2 times or more" in said, said)
ok("and one that did not says nothing", "fewer" not in run("tokenizer", "train", "text.jsonl", "--vocabulary", made - 5, "--output", "small.json").stderr)
ids = [run("tokenizer", "encode", *words, stdin="de molen").stdout for words in (["tok.json"], ["--tokenizer", "tok.json"])]
ok("tokenizer encode takes the file without a flag", ids[0] == ids[1] != "")
ok("and decode", run("tokenizer", "decode", "tok.json", stdin=ids[0]).stdout == "de molen")

# --- a vocabulary that is larger than the tokenizer's ----------------------------------------------------------------------
padded = ["--set", "run.name=padded", "--set", f"model.vocabulary={2 * entries}", "--set", 'train.until="2 steps"']
run("train", "own.toml", *padded)
run("checkpoint", "export", "runs/padded", "padded-hf")
run("checkpoint", "import", "padded-hf", "padded-back")
texts = [run("generate", where, "--prompt", "de", "--max-tokens", 60, "--temperature", 2, "--seed", 3, "--threads", 1).stdout for where in ("runs/padded", "padded-hf", "padded-back")]
# Half of the ids have no token: 60 draws without one of them come once in 2^60.
ok("ids that no token has are never drawn", len(texts[0]) > 10 and texts[0] == texts[1] == texts[2], texts)

# --- a run that is looked at, compared and extended --------------------------------------------------------------------------
run("train", "own.toml")  # there is nothing to do
html = run("report", "runs/own").stdout and (work / "runs/own/report.html").read_text()
ended = html.split("<dt>Ended<dd>")[1].split("</div>")[0]
ok("the report shows how the training ended", ended.startswith("reached train.until (50 steps)") and ended.endswith("started once more after that, with nothing to do"), ended)
flight = json.loads(run("runs", "flight", "runs/own", "--format", "json").stdout)
ok("the flight record of a start with nothing to do", [(r["state"], r["step"]) for r in flight["ranks"]] == [("ended", 50)], flight)
listed = run("runs", "list").stdout
row = next(line for line in listed.splitlines() if line.startswith("own "))
ok("runs list: date, state, layout", re.search(r"^own +\d{4}-\d\d-\d\d \d\d:\d\d +done +50 .* 1 rank \(self\)$", row), listed)
shown = run("runs", "show", "runs/own").stdout
ok("runs show is for people", "{" not in shown and re.search(r"^state +done: reached train.until", shown, re.M) and re.search(rf"^  learning rate +{steps[50]['lr']:.4g}$", shown, re.M), shown)
ok("runs show --format json is the line", json.loads(run("runs", "show", "runs/own", "--format", "json").stdout) == steps[50])
run("train", "own.toml", "--set", "run.name=other", "--set", "optimizer.lr=1e-3", "--set", "train.stop_after=9 steps")
compared = run("runs", "compare", "runs/own", "runs/other", code=1).stdout
ok("runs compare: configurations and figures", re.search(r"^optimizer.lr +0\.003 +0\.001 +decides the numbers$", compared, re.M) and re.search(r"^last loss +\d+\.\d{4} +\d+\.\d{4} +[+-]\d+\.\d%$", compared, re.M), compared)
both = json.loads(run("runs", "compare", "runs/own", "runs/other", "--format", "json", code=1).stdout)
ok("runs compare --format json has both", {"key": "optimizer.lr", "a": "0.003", "b": "0.001", "decides_numbers": True} in both["configuration"] and next(f for f in both["figures"] if f["figure"] == "steps") == {"figure": "steps", "a": 50, "b": 9}, both)
longer = ["train", "own.toml", "--set", "train.until=60 steps"]
refused("a longer run says what changes, and how", *longer, says=["train.until", "the horizon of the learning rate", "add to the command: --allow-change train.until"])
run(*longer, "--allow-change", "train.until")
ok("which continues it, with the warm-up that was", max(metrics("own")) == 60 and re.search(r'^warmup = "5 steps" +# as in the checkpoint$', (work / "runs/own/config.toml").read_text(), re.M))
shown = run("train", "own.toml", "--dry-run", "--ranks", 2, "--set", "parallel.sharding=Full_Shard", "--set", "run.name=dry").stdout
ok("what is in memory for a time is not called activations alone", "(activations, gathered parameters, gradients on their way, scratch)" in shown and "ZeRO-3" in shown, shown)

# --- where a step went (docs/formats/metrics.md) ---------------------------------------------------------------------------------
for name, sets, piped in (("pair", [], False), ("stages", ["--set", "parallel.pipeline=2"], True)):
    run("train", "own.toml", "--set", f"run.name={name}", "--set", "train.until=6 steps", "--set", "math.threads=1", "--ranks", 2, *sets)
    last = metrics(name)[6]
    phases = last["phase_s"]
    ok(f"{name}: waiting is a bubble in a pipeline alone", (phases["bubble"] > 0) == piped and abs(sum(phases.values()) - last["step_s"]) < 1e-6 * len(phases) + 1e-9, last)
    ok(f"{name}: what waits for a reduction is booked there", piped or phases["gradient_reduce"] > 0, phases)

# --- several nodes -------------------------------------------------------------------------------------------------------------
page = (ROOT / "docs/several-nodes.md").read_text()
plans = re.findall(r"^    molen (program .*)\n((?:^    .*\n|^\n)+)", page, re.M)
ok("the page of several nodes has its programs", len(plans) >= 2, page)
for words, quoted in plans:
    quoted = [line.strip() for line in quoted.splitlines() if line.strip()]
    said = run(*shlex.split(words)).stdout
    ok(f"molen {words[:60]}...: the figures that the page quotes", quoted and all(any(line.startswith(q) for line in said.splitlines()) for q in quoted), (quoted, said[:1500]))
finish("newcomer")
