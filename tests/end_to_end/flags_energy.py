"""Rows of energy collect, energy send, energy daemon and energy manage."""
import contextlib
import csv
import fcntl
import grp
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import tempfile
import time

from effects import close, equal, lines_of, row
from harness import ENV, MOLEN, started, work
from packages import LimitedPackage, until

TOKEN = "0123456789abcdef0123"


def secret(name, token=TOKEN, mode=0o600):
    path = work / name
    path.write_text(token + "\n")
    path.chmod(mode)
    return name


def rows_of(database, sql):
    with contextlib.closing(sqlite3.connect(work / database)) as connection:
        return connection.execute(sql).fetchall()


@contextlib.contextmanager
def collector(case, *words):
    """A collector that runs meanwhile: the addresses that it prints, and what it said at the end."""
    words = case.words_of(["energy", "collect", *words])
    said = {}
    job = subprocess.Popen([MOLEN, *words], cwd=work, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        first = job.stdout.readline()
        assert first.startswith("records go to "), first + job.stderr.read()
        said["addresses"] = [job.stdout.readline().removeprefix("listening on ").strip() for _ in range(max(1, words.count("--listen")))]
        yield said
    finally:
        job.send_signal(signal.SIGTERM)
        try:
            out, said["err"] = job.communicate(timeout=60)
        finally:
            job.kill()
        said["out"] = first + out
        assert job.returncode == 0, said


def recording(name, watts):
    (work / name).write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": watts * t}}) + "\n" for t in (0.0, 1e5)))
    return f"replay:{name}"


@row("energy collect --database", "energy collect --listen", "energy send --to", "energy send --every", "energy send --count", "energy send --node", "energy send --meters", "energy send --spool",
     "energy send --job", "energy send --step", "energy send --user", "energy send --group", "energy send --account", "energy send --tag", "energy account --database", "energy account --job", "energy account --events")
def collect_and_send(case):
    meter = recording("forty.jsonl", 40)
    with collector(case, "--database", "sqlite:site.db", "--listen", "127.0.0.1:0", "--listen", "unix:socket") as said:
        tcp, local = said["addresses"]
        equal("the second address", local, "unix:socket")
        start = time.time()
        case.molen("energy", "send", "--to", tcp, "--every", 0.3, "--count", 3, "--node", "first", "--meters", meter, "--spool", "a.spool", "--job", "77", "--step", "2", "--user", "ann",
                   "--group", "physics", "--account", "a1", "--tag", "pilot")
        took = time.time() - start
        case.molen("energy", "send", "--to", local, "--every", 0.1, "--count", 2, "--meters", meter, "--spool", "b.spool")
        periods = rows_of("site.db", "SELECT start_s, end_s, joules, scope, meter, source, counted, job, step, user_name FROM energy_periods WHERE node = 'first' ORDER BY start_s")
        equal("--count", len(periods), 3)
        assert took >= 0.9, took
        for begin, end, joules, *words in periods:
            assert start - 1 <= begin < end <= start + took + 1 and 0.15 <= end - begin < took, (begin, end, start)
            close("40 W", joules / (end - begin), 40, 0.5)  # a machine that is busy reads the clock later than the meter
            equal("its words", words, ["cpu-package0", "replay", "counter", 1, "77", "2", "ann"])
        assert 0.75 <= periods[-1][1] - periods[0][0] < took, periods  # three waits of 0.3 s, by a clock that is read later than the meter
        close("40 W in all", sum(p[2] for p in periods) / sum(p[1] - p[0] for p in periods), 40, 0.2)
        for one, two in zip(periods, periods[1:]):
            equal("periods follow each other", one[1], two[0])
        host = os.uname().nodename
        equal("the host is the node, and no job is known", rows_of("site.db", f"SELECT DISTINCT job, step, user_name FROM energy_periods WHERE node = '{host}'"), [(None, None, None)])
        equal("of each node", rows_of("site.db", "SELECT nodes FROM energy_by_job"), [(1,)])
        equal("events", [k for k, in rows_of("site.db", "SELECT kind FROM energy_events WHERE node = 'first' ORDER BY seq")], ["start", "job_start", "job_labels", "job_stop", "job_labels", "stop"])
        equal("the job of an event", rows_of("site.db", "SELECT DISTINCT text FROM energy_events WHERE kind LIKE 'job_st%'"), [("job=77 step=2 user=ann",)])
        assert "first" in (work / "a.spool").read_text() and "first" not in (work / "b.spool").read_text()
    assert "with 5 periods and 8 events" in said["out"] and not said["err"], said
    assert not (work / "socket").exists()
    # The account of the database. It needs no collector.
    account = ["energy", "account", "--database", "sqlite:site.db"]
    asked = lambda *words: {r["key"]: r for r in json.loads(case.molen(*account, *words, "--format", "json").stdout)["rows"]}
    joules = sum(j for _, _, j, *_ in periods)
    equal("by node", set(asked()), {"first", host})
    close("its joules", asked()["first"]["energy_j"], joules, 1e-12)
    equal("by job", {k: r["nodes"] for k, r in asked("--by", "job").items()}, {"": 1, "77": 1})
    equal("by step of a job", {k: r["nodes"] for k, r in asked("--by", "step").items()}, {"": 1, "77.2": 1})
    close("by user", asked("--by", "user")["ann"]["energy_j"], joules, 1e-12)
    for by, label, column in (("group", "physics", "user_group"), ("account", "a1", "user_acc"), ("tag", "pilot", "e_tag")):
        sums = asked("--by", by)
        equal(f"by {by}", set(sums), {"", label})
        close(f"joules by {by}", sums[label]["energy_j"], joules, 1e-12)
        equal(f"{by} in CSV", [r["job_id"] for r in csv.DictReader(case.molen(*account, "--by", by, "--format", "csv").stdout.splitlines()) if r[column] == label], ["77"])
    equal("labels in the sums by job", [[r[c] for c in ("user_group", "user_acc", "e_tag")] for r in csv.DictReader(case.molen(*account, "--by", "job", "--format", "csv").stdout.splitlines()) if r["job_id"]], [["physics", "a1", "pilot"]])
    for flag in ("--group", "--account", "--tag"):
        case.refused("energy", "send", "--to", "unix:none", "--spool", "c.spool", flag, "x", says=f"{flag}: belongs to a job, so it needs --job")
    equal("by day", sum(r["nodes"] > 0 for r in asked("--by", "day").values()) in (1, 2), True)
    equal("--since", asked("--since", "2100-01-01"), {})
    equal("--until", asked("--until", "2000-01-01"), {})
    line = next(x for x in case.molen(*account).stdout.splitlines() if x.startswith("first"))
    close("kWh", float(line.split()[1]), joules / 3.6e6, 1e-3)
    case.refused(*account, "--by", "run", says="--by: 'run' is not one of node, job, step, user, day, group, account, tag")
    # Seconds, mean power and the energy-delay product, in each format. The meter has 40 W.
    took, first = sum(p[1] - p[0] for p in periods), asked()["first"]
    close("seconds", first["seconds"], took, 1e-6)
    close("node seconds", first["node_seconds"], took, 1e-6)
    close("mean power", first["mean_w"], joules / took, 1e-6)
    for by, key in (("node", "first"), ("job", "77"), ("step", "77.2"), ("user", "ann")):
        close(f"EDP by {by}", asked("--by", by)[key]["edp_js"], joules * took, 1e-6)
    equal("no job, no delay", asked()[host]["edp_js"], None)
    lines = list(csv.DictReader(case.molen(*account, "--by", "step", "--format", "csv").stdout.splitlines()))
    of_step = next(r for r in lines if r["job_id"] == "77")
    equal("whose", [of_step[k] for k in ("step_id", "user_id", "node_id", "nodes", "DC_power")], ["2", "ann", "first", "1", ""])
    for name, value in (("energy_J", joules), ("time", took), ("power_W", joules / took), ("PCK_power", joules / took), ("EDP", joules * took)):
        close(name, float(of_step[name]), value, 1e-6)
    days = {r["day"]: r for r in csv.DictReader(case.molen(*account, "--by", "day", "--format", "csv").stdout.splitlines())}
    equal("a day for each line", set(days), {day for day, in rows_of("site.db", "SELECT DISTINCT date(start_s, 'unixepoch') FROM energy_periods")})
    close("joules of the days", sum(float(r["energy_J"]) for r in days.values()), rows_of("site.db", "SELECT SUM(joules) FROM energy_periods")[0][0], 1e-6)
    equal("nodes of a day", {r["node_id"] for r in days.values() if r["nodes"] == "2"} <= {""}, True)
    shown = next(x for x in case.molen(*account, "--by", "step").stdout.splitlines() if x.startswith("77.2"))
    assert f"{joules / took:.4g}" in shown and f"{joules * took / 1e6:.4g}" in shown, shown
    equal("--job", set(asked("--job", "77")), {"first"})
    equal("another --job", asked("--job", "78"), {})
    # Nodes beside each other: two are too few to name outliers.
    both = json.loads(case.molen(*account, "--format", "json").stdout)
    watts = [r["mean_w"] for r in both["rows"]]
    close("imbalance", both["nodes"]["imbalance"], max(watts) * 2 / sum(watts), 1e-9)
    equal("not judged", both["nodes"]["outliers"], None)
    assert "2 nodes are too few to name outliers" in case.molen(*account).stdout
    with collector(case, "--database", "sqlite:nodes.db", "--listen", "unix:nodes"):
        for node, watts in (("n1", 40), ("n2", 40), ("n3", 400), ("n4", 40)):
            case.molen("energy", "send", "--to", "unix:nodes", "--every", 0.2, "--count", 1, "--node", node, "--meters", recording(f"{node}.jsonl", watts), "--spool", f"{node}.spool", "--job", "9")
        # A node that counts its memory too has more power, and is no outlier.
        (work / "n5.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 40 * t, "dram0": 400 * t}}) + "\n" for t in (0.0, 1e5)))
        case.molen("energy", "send", "--to", "unix:nodes", "--every", 0.2, "--count", 1, "--node", "n5", "--meters", "replay:n5.jsonl", "--spool", "n5.spool", "--job", "9")
    of_nodes = json.loads(case.molen("energy", "account", "--database", "sqlite:nodes.db", "--format", "json").stdout)
    equal("outliers", of_nodes["nodes"]["outliers"], ["n3"])
    close("beside the median", of_nodes["rows"][2]["of_median"], of_nodes["rows"][2]["mean_w"] / of_nodes["nodes"]["median_w"], 1e-9)
    compared = [r["mean_w"] for r in of_nodes["rows"][:4]]
    close("median", of_nodes["nodes"]["median_w"], statistics.median(compared), 1e-9)
    close("scaled MAD", of_nodes["nodes"]["scaled_mad_w"], 1.4826 * statistics.median(abs(w - statistics.median(compared)) for w in compared), 1e-6)
    equal("not compared", (of_nodes["nodes"]["not_compared"], of_nodes["rows"][4]["of_median"]), ({"n5": "other scopes: cpu-package0 dram0"}, None))
    text = case.molen("energy", "account", "--database", "sqlite:nodes.db").stdout
    assert "not compared: n5, other scopes: cpu-package0 dram0" in text, text
    assert "of median" in text and "outliers: n3 (+" in text, text
    assert "outliers" not in case.molen("energy", "account", "--database", "sqlite:nodes.db", "--by", "job").stdout
    # What happened.
    happened = lambda *words: json.loads(case.molen(*account, "--events", "--format", "json", *words).stdout)["events"]
    equal("--events", sorted(e["kind"] for e in happened() if e["node"] == "first"), ["job_labels", "job_labels", "job_start", "job_stop", "start", "stop"])
    equal("--events of a job", [(e["kind"], e["text"]) for e in happened("--job", "77")], [("job_labels", "job=77 group=physics account=a1 tag=pilot"), ("job_start", "job=77 step=2 user=ann"), ("job_labels", "job=77 group=physics account=a1 tag=pilot"), ("job_stop", "job=77 step=2 user=ann")])
    equal("in CSV", [r["event_type"] for r in csv.DictReader(case.molen(*account, "--events", "--job", "77", "--format", "csv").stdout.splitlines())], ["job_labels", "job_start", "job_labels", "job_stop"])
    assert "job=77 step=2 user=ann" in case.molen(*account, "--events").stdout
    equal("--events --since", happened("--since", "2100-01-01"), [])
    case.refused(*account, "--events", "--by", "node", says="--by")
    case.refused(*account, "--job", "a b", says="--job")
    case.refused("energy", "account", "runs", "--database", "sqlite:site.db", says="--database")
    case.refused("energy", "account", "--database", "sqlite:none.db", says="no such file")
    case.refused("energy", "account", "--database", "mysql:x", says="sqlite:FILE")
    # Without a collector the records wait in the spool, and the next start sends them.
    case.refused("energy", "send", "--to", "unix:socket", "--every", 0.1, "--count", 2, "--node", "late", "--meters", meter, "--spool", "late.spool", code=1, says=["kept in late.spool", "batches not acknowledged"])
    with collector(case, "--database", "sqlite:site.db", "--listen", "unix:socket"):
        case.molen("energy", "send", "--to", "unix:socket", "--every", 0.1, "--count", 1, "--node", "late", "--meters", "none", "--spool", "late.spool")
        equal("what had waited", rows_of("site.db", "SELECT COUNT(*) FROM energy_periods WHERE node = 'late'"), [(2,)])
        equal("two sessions", rows_of("site.db", "SELECT COUNT(*) FROM energy_sessions WHERE node = 'late'"), [(2,)])
    case.refused("energy", "send", "--to", "unix:socket", "--node", "other", "--spool", "late.spool", says="belongs to node late")
    case.refused("energy", "send", "--to", "a:b", says="--to: 'a:b'")
    case.refused("energy", "send", "--to", "unix:socket", "--node", "a b", says="--node: 'a b'")
    case.refused("energy", "send", "--to", "unix:socket", "--job", "a b", says="--job")
    case.refused("energy", "send", "--to", "unix:socket", "--step", "a b", says="--step")
    case.refused("energy", "send", "--to", "unix:socket", "--user", "a b", says="--user")
    case.refused("energy", "send", "--to", "unix:socket", "--every", 0, says="--every")
    case.refused("energy", "send", "--to", "unix:socket", "--count", -1, says="--count")
    case.refused("energy", "collect", "--database", "site.db", says="sqlite:FILE")
    case.refused("energy", "collect", "--database", "sqlite:none/site.db", says="none/site.db")
    case.refused("energy", "collect", "--database", "postgresql://u:hidden@/d?host=/none", code=1, says="/none")


def eventually(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def gone(job, seconds=30):
    return eventually(lambda: job.poll() is not None, seconds)


@row("energy send --lock", "energy send --until-hangup")
def senders_in_turn(case):
    """Senders of steps that overlap: each moment is measured once, and each sender ends with whoever holds its standard input."""
    meter = recording("hundred.jsonl", 100)
    words = ["--to", "unix:turns", "--every", 0.2, "--node", "n", "--meters", meter, "--spool", "turns.spool", "--lock", "turns.lock", "--until-hangup"]

    def step(name):
        command = case.words_of(["energy", "send", *words, "--job", "5", "--step", name])
        return subprocess.Popen([MOLEN, *command], cwd=work, env=ENV, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    periods = lambda where="1": rows_of("turns.db", f"SELECT step, start_s, end_s, joules FROM energy_periods WHERE {where} ORDER BY start_s")
    has_turn = lambda name: (work / "turns.lock").exists() and f"step={name}\n" in (work / "turns.lock").read_text()
    jobs = []
    try:
        with collector(case, "--database", "sqlite:turns.db", "--listen", "unix:turns"):
            outer = step("outer")
            jobs.append(outer)
            assert eventually(lambda: has_turn("outer"))
            inner, late = step("inner"), step("late")
            jobs += [inner, late]
            time.sleep(1)
            equal("who measures", (work / "turns.lock").read_text(), f"node=n pid={outer.pid} job=5 step=outer\n")
            assert outer.poll() is None and inner.poll() is None and late.poll() is None
            inner.stdin.close()
            assert gone(inner) and inner.returncode == 0, inner.stderr.read()
            ended = time.time()
            outer.stdin.close()
            assert gone(outer) and outer.returncode == 0, outer.stderr.read()
            assert eventually(lambda: any(p[0] == "late" for p in periods()))
            late.kill()  # the kernel lets go of what it had
            late.wait()
            last = step("last")
            jobs.append(last)
            assert eventually(lambda: any(p[0] == "last" for p in periods()))
            last.stdin.close()
            assert gone(last) and last.returncode == 0, last.stderr.read()
        equal("who measured", sorted({p[0] for p in periods()}), ["last", "late", "outer"])
        for one, two in zip(periods(), periods()[1:]):
            assert one[2] <= two[1] + 1e-3, ("measured twice", one, two)
        takes_over = periods("step = 'late'")[0][1]
        assert abs(takes_over - ended) < 3, (takes_over, ended)
        for _, begin, end, joules in periods():
            close("100 W", joules / (end - begin), 100, 0.5)
        # While the collector is away, each sender leaves its records to the next one, which waits for the spool only.
        waiting = lambda name: f'"step":"{name}"' in (work / "turns.spool").read_text()
        first = step("first")
        jobs.append(first)
        assert eventually(lambda: waiting("first"))
        second = step("second")
        jobs.append(second)
        time.sleep(0.5)
        first.stdin.close()
        assert gone(first) and first.returncode == 0, first.stderr.read()
        assert eventually(lambda: waiting("second"))
        second.stdin.close()
        assert gone(second), "the last one waits some seconds for the collector"
        assert second.returncode == 1 and "not acknowledged" in second.stderr.read()
        with collector(case, "--database", "sqlite:turns.db", "--listen", "unix:turns"):
            case.molen("energy", "send", "--to", "unix:turns", "--every", 0.1, "--count", 1, "--node", "n", "--meters", "none", "--spool", "turns.spool")
        equal("what waited arrived", sorted({p[0] for p in periods("step IN ('first', 'second')")}), ["first", "second"])
        equal("its jobs", rows_of("turns.db", "SELECT kind, COUNT(*) FROM energy_events WHERE text IN ('job=5 step=first', 'job=5 step=second') GROUP BY kind ORDER BY kind"), [("job_start", 2), ("job_stop", 2)])
    finally:
        for job in jobs:
            job.kill()
    # Another process that keeps the spool costs no record: the periods are in memory until it is free, or until the step ends.
    with open(work / "turns.spool.lock", "a") as held, collector(case, "--database", "sqlite:kept.db", "--listen", "unix:turns"):
        fcntl.flock(held, fcntl.LOCK_EX)
        waits = step("kept")
        jobs.append(waits)
        assert eventually(lambda: has_turn("kept"))
        stuck = step("behind")
        jobs.append(stuck)
        said = waits.stderr.readline()
        assert "turns.spool: another process has it after 10 s" in said, said
        said = stuck.stderr.readline()
        assert f"turns.lock: waits for its turn to measure; node=n pid={waits.pid} job=5 step=kept has it" in said, said
        stuck.stdin.close()
        assert gone(stuck) and stuck.returncode == 0
        time.sleep(1)
        fcntl.flock(held, fcntl.LOCK_UN)
        time.sleep(1)
        waits.stdin.close()
        assert gone(waits) and waits.returncode == 0, waits.stderr.read()
        (covered, length, periods), = rows_of("kept.db", "SELECT SUM(end_s - start_s), MAX(end_s) - MIN(start_s), COUNT(*) FROM energy_periods")
        close("no gap", covered, length, 1e-3)
        assert length > 10 and periods >= 5, (length, periods)
        fcntl.flock(held, fcntl.LOCK_EX)
        waits = step("ended")
        jobs.append(waits)
        assert eventually(lambda: has_turn("ended"))
        waits.stdin.close()
        assert gone(waits, 20) and waits.returncode == 2 and "another process sends from this spool" in waits.stderr.read()
    # Without the lock a spool is refused at once; without a pipe nothing would end the sender.
    case.refused("energy", "send", "--to", "unix:turns", "--until-hangup", "--node", "n", "--spool", "none.spool", says="--until-hangup: standard input must be a pipe", launcher=["sh", "-c", 'exec "$@" </dev/null', "sh"])
    case.refused("energy", "send", "--to", "unix:turns", "--node", "n", "--lock", "none/lock", code=1, says="none/lock")


@row("energy send --uid", "energy send --gid")
def users_by_number(case):
    meter = recording("uid.jsonl", 10)
    send = ["energy", "send", "--to", "unix:uids", "--every", 0.1, "--count", 1, "--node", "n", "--meters", meter, "--spool", "uids.spool"]
    with collector(case, "--database", "sqlite:uids.db", "--listen", "unix:uids"):
        case.molen(*send, "--job", "1", "--uid", 0, "--gid", 0)
        case.molen(*send, "--job", "2", "--uid", 4294967294, "--gid", 4294967294)
    users = dict(rows_of("uids.db", "SELECT job, user_name FROM energy_periods"))
    equal("the name, or the number where there is none", users, {"1": pwd.getpwuid(0).pw_name, "2": "4294967294"})
    groups = dict(rows_of("uids.db", "SELECT job, group_name FROM energy_jobs"))
    equal("the group's name, or the number where there is none", groups, {"1": grp.getgrgid(0).gr_name, "2": "4294967294"})
    # A label may be a user's text, and ends no measurement.
    with collector(case, "--database", "sqlite:texts.db", "--listen", "unix:uids"):
        said = case.molen(*send, "--job", "3", "--tag", "my job " + "x" * 100, "--account", "").stderr
    name = "my_job_" + "x" * 93
    equal("a text becomes a name", rows_of("texts.db", "SELECT tag, account FROM energy_jobs"), [(name, None)])
    assert f"is recorded as '{name}'" in said, said
    case.refused(*send, "--gid", 0, says="--gid: belongs to a job, so it needs --job")
    case.refused(*send, "--job", 1, "--gid", 0, "--group", "physics", says="--group")
    case.refused(*send, "--uid", "ann", says="--uid")
    case.refused(*send, "--uid", -1, says="--uid")
    case.refused(*send, "--uid", 0, "--user", "ann", says="--user")


@row("energy collect --token-file", "energy send --token-file")
def tokens(case):
    meter = recording("ten.jsonl", 10)
    send = ["energy", "send", "--every", 0.1, "--count", 1, "--node", "n", "--meters", meter]
    case.refused("energy", "collect", "--database", "sqlite:t.db", "--listen", "0.0.0.0:0", says="--token-file")
    case.refused("energy", "collect", "--database", "sqlite:t.db", "--token-file", secret("open", mode=0o644), says="chmod 600")
    case.refused("energy", "collect", "--database", "sqlite:t.db", "--token-file", secret("short", "abc"), says="16 to 1024")
    with collector(case, "--database", "sqlite:t.db", "--listen", "0.0.0.0:0", "--token-file", secret("token")) as said:
        to = "127.0.0.1:" + said["addresses"][0].rsplit(":", 1)[1]
        case.refused(*send, "--to", to, "--spool", "none.spool", code=1, says="needs a token")
        case.refused(*send, "--to", to, "--spool", "wrong.spool", "--token-file", secret("wrong", TOKEN[::-1]), code=1, says="not the token")
        case.molen(*send, "--to", to, "--spool", "right.spool", "--token-file", "token")
        equal("one period", rows_of("t.db", "SELECT COUNT(*) FROM energy_periods"), [(1,)])
    assert said["err"].count("was cut") >= 2 and TOKEN not in said["err"] + said["out"], said


@row()
def killed_collector(case):
    """SIGKILL at any moment: what a node sent is stored once."""
    meter = recording("five.jsonl", 5)
    sender = subprocess.Popen([MOLEN, "energy", "send", "--to", "unix:killed", "--every", "0.1", "--node", "n", "--meters", meter, "--spool", "killed.spool"], cwd=work, env=ENV, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(4):
            job = subprocess.Popen([MOLEN, "energy", "collect", "--database", "sqlite:killed.db", "--listen", "unix:killed"], cwd=work, env=ENV, stdout=subprocess.DEVNULL)
            time.sleep(1.5)
            job.kill()
            job.wait()
        with collector(case, "--database", "sqlite:killed.db", "--listen", "unix:killed"):
            time.sleep(0.5)
            sender.send_signal(signal.SIGINT)
            err = sender.communicate(timeout=60)[1]
            equal("the sender delivered everything", sender.returncode, 0)
    finally:
        sender.kill()
    assert "takes records again" in err, err
    (seconds, joules, begin, end, periods), = rows_of("killed.db", "SELECT SUM(end_s - start_s), SUM(joules), MIN(start_s), MAX(end_s), COUNT(*) FROM energy_periods")
    close("no period is missing or doubled", seconds, end - begin, 1e-6)
    close("and no joule", joules, 5 * seconds, 0.02)
    assert periods > 20, periods


# --- energy daemon -----------------------------------------------------------------------------------------------------------------
def fake_clocks(folder):
    """Two packages of one processor each in place of /sys: 0.8 to 3 GHz."""
    for p in range(2):
        policy = folder / f"devices/system/cpu/cpufreq/policy{p}"
        policy.mkdir(parents=True)
        for name, value in (("cpuinfo_min_freq", 800000), ("cpuinfo_max_freq", 3000000), ("scaling_min_freq", 800000), ("scaling_max_freq", 3000000), ("affected_cpus", p)):
            (policy / name).write_text(f"{value}\n")
        topology = folder / f"devices/system/cpu/cpu{p}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{p}\n")
    return folder


def clocks(folder):
    return [int((folder / f"devices/system/cpu/cpufreq/policy{p}/scaling_max_freq").read_text() or 0) for p in range(2)]


@contextlib.contextmanager
def daemon(case, sys, *words):
    """A daemon that runs meanwhile; its first line and its socket, and what it said at the end. The socket's folder is one that other users may enter."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="molen_daemon_"))
    folder.chmod(0o755)
    said = {"socket": str(folder / "socket")}
    words = case.words_of(["energy", "daemon", "--socket", said["socket"], "--journals", folder / "leases", *words])
    job = started([MOLEN, *words], env={**ENV, "MOLEN_SYSFS": str(sys)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        said["first"] = job.stdout.readline()
        equal("it listens", job.stdout.readline(), f"listening on {said['socket']}\n")
        said["job"], said["leases"] = job, folder / "leases"
        yield said
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
        try:
            said["err"] = job.communicate(timeout=60)[1]
        finally:
            job.kill()
            shutil.rmtree(folder)


class Asking:
    """A peer of a daemon: a connection, and the answers to its requests."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rwb")
        equal("welcome", json.loads(self.file.readline()), {"welcome": 1})

    def __call__(self, request, **keys):
        self.file.write(json.dumps({"request": request, **keys}).encode() + b"\n")
        self.file.flush()
        return json.loads(self.file.readline())

    def close(self):
        self.file.close()
        self.socket.close()


ANOTHER = 65534  # a user who is not root
PEER = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
f = s.makefile("rwb")
print(f.readline().decode().strip())
for line in sys.argv[2:]:
    f.write(line.encode() + b"\\n")
    f.flush()
    print(f.readline().decode().strip())
"""


def asked_by_another(path, *requests):
    """What the daemon answers to a peer that is no root: another user if this one is root, else this user."""
    other = dict(user=ANOTHER, group=ANOTHER, extra_groups=[]) if os.geteuid() == 0 else {}
    done = subprocess.run(["/usr/bin/python3", "-c", PEER, path, *(json.dumps(r) for r in requests)], cwd="/", capture_output=True, text=True, **other)
    return [json.loads(x) for x in done.stdout.splitlines()]


MAY_ASK = ["--allow-user", os.geteuid()]  # root may in any case


@row("energy daemon --socket", "energy daemon --exclusive", "energy daemon --least", "energy daemon --most", "energy daemon --meters", "energy daemon --read-every", "energy daemon --journals")
def energy_daemon(case):
    sys = fake_clocks(work / "sys")
    (work / "none").mkdir()
    meter = recording("thirty.jsonl", 30)
    with daemon(case, sys, *MAY_ASK, "--exclusive", "--least", "cpufreq=1.2 GHz", "--most", "cpufreq=2 GHz", "--meters", meter, "--read-every", 0.6) as said:
        equal("what it has", said["first"], "1 meter; 2 settings\n")
        env = {"MOLEN_SYSFS": str(work / "none"), "MOLEN_ENERGY_SOCKET": said["socket"]}
        listed = json.loads(case.molen("energy", "list", "--meters", "daemon", "--format", "json", env=env).stdout)
        equal("its meter", [(m["scope"], m["meter"], m["source"]) for m in listed["available"]], [("cpu-package0", "daemon", "counter")])
        equal("its settings", [(s["id"], s["least"], s["most"], s["through"]) for s in listed["settings"]["available"]], [(f"cpufreq:cpu-package{p}", 1200000, 2000000, f"daemon at {said['socket']}") for p in range(2)])
        text = case.molen("energy", "list", "--meters", "daemon", env=env).stdout
        assert f"through the daemon at {said['socket']}" in text and f"replay at {said['socket']}" in text, text
        peer = Asking(said["socket"])
        joules = [peer("read")["readings"][0]["joules"] for _ in range(3)]
        assert joules[0] == joules[1] == joules[2], joules
        before = time.time()
        time.sleep(0.7)
        more = peer("read")["readings"][0]["joules"] - joules[0]
        assert 30 * 0.6 <= more <= 30 * (time.time() - before + 0.6 + 0.1), more
        equal("the lease", peer("lease", settings=["cpufreq:cpu-package1"]), {"leased": True})
        equal("the journal", [len(list(p.glob("actuators-*.json"))) for p in said["leases"].iterdir()], [1])
        equal("set", peer("set", setting="cpufreq:cpu-package1", value=1500000), {"set": 1500000})
        for value in (1100000, 2100000):
            refused = peer("set", setting="cpufreq:cpu-package1", value=value)["refused"]
            assert refused.endswith("is outside what may be set here, 1.2 GHz to 2 GHz"), refused
        equal("the clocks", clocks(sys), [3000000, 1500000])
        peer.close()
        until(lambda: clocks(sys) == [3000000, 3000000])
        case.refused("energy", "daemon", "--socket", said["socket"], "--journals", said["leases"], says="another process listens there")
    equal("nothing was amiss", said["err"], "")
    case.refused("energy", "daemon", "--least", "cpufreq=1.2", says="--least: 'cpufreq=1.2'")
    case.refused("energy", "daemon", "--most", "fan=1 W", says="--most: 'fan=1 W'")
    case.refused("energy", "daemon", "--least", "cpufreq=2 GHz", "--most", "cpufreq=1 GHz", says="--most")
    case.refused("energy", "daemon", "--exclusive", "--owners", "x", says="--exclusive")
    case.refused("energy", "daemon", "--meters", "watts", says="watts")
    case.refused("energy", "daemon", "--read-every", 0, says="--read-every")
    case.refused("energy", "daemon", "--allow-user", "no such user", says="--allow-user")
    case.refused("energy", "daemon", "--allow-group", "no such group", says="--allow-group")
    case.refused("energy", "list", "--meters", "daemon", env={"MOLEN_ENERGY_SOCKET": "/none/here"}, says="the energy daemon at unix:/none/here")
    (work / "open").mkdir()
    (work / "open").chmod(0o777)
    case.refused("energy", "daemon", "--socket", "open.socket", "--journals", "open", says="into which nobody else may write")


@row("energy daemon --allow-user", "energy daemon --allow-group", "energy daemon --owners")
def daemon_users(case):
    sys = fake_clocks(work / "sys")
    uid, gid = (ANOTHER, ANOTHER) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    lease = lambda p: {"request": "lease", "settings": [f"cpufreq:cpu-package{p}"]}
    with daemon(case, sys, "--meters", "none", "--exclusive") as said:
        answer, = asked_by_another(said["socket"])
        assert "may not use this daemon" in answer["closing"] and f"user {uid} " in answer["closing"], answer
    assert "is not on the list" in said["err"], said
    with daemon(case, sys, "--meters", "none", "--exclusive", "--allow-group", gid) as said:
        equal("a group", asked_by_another(said["socket"], lease(0), {"request": "set", "setting": "cpufreq:cpu-package0", "value": 2000000}), [{"welcome": 1}, {"leased": True}, {"set": 2000000}])
    with daemon(case, sys, "--meters", "none", "--allow-user", uid) as said:
        assert "neither --owners nor --exclusive" in said["first"], said
        answer = asked_by_another(said["socket"], lease(0))[1]
        assert "reads meters only" in answer["refused"], answer
    owners = work / "owners"
    owners.mkdir()
    owners.chmod(0o755)
    (owners / "77").write_text(f"{uid} cpu-package1\n")
    (owners / "77").chmod(0o644)
    with daemon(case, sys, "--meters", "none", "--allow-user", uid, "--owners", owners) as said:
        _, no, yes = asked_by_another(said["socket"], lease(0), lease(1))
        assert "cpu-package0 belongs to no job of user" in no["refused"], no
        equal("its own", yes, {"leased": True})
    equal("the clocks", clocks(sys), [3000000, 3000000])


@row()
def daemon_policy(case):
    """A job without rights keeps its budget through the daemon, and goes on without a policy when the daemon is killed."""
    (work / "none").mkdir()
    with LimitedPackage(work / "sys") as package, daemon(case, work / "sys", *MAY_ASK, "--exclusive", "--meters", "rapl-powercap", "--read-every", 0.001) as said:
        env = {"MOLEN_SYSFS": str(work / "none"), "MOLEN_ENERGY_SOCKET": said["socket"]}
        budget = {"train.until": "100000 steps", "energy.meters": ["daemon"], "energy.power_budget": "120 W", "batch.global": 16}
        kept = case.train(budget, {"train.stop_after": "5 s"}, env=env)
        settings = [s["policy_setting"] for s in kept.steps]
        equal("the first step", settings[0], 250)
        assert all(60 <= x <= 120 for x in settings[-10:]), settings
        equal("the limit at the end", package.limit(), 250)
        words = case.words_of([{"run.name": "orphan"}, budget])
        run = started([MOLEN, "train", "tiny.toml", *words], env={**ENV, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until(lambda: 0 < package.limit() < 200)
        said["job"].kill()
        until(lambda: package.limit() == 250)
        events = work / "runs/orphan/events.jsonl"
        until(lambda: "the policy ends" in events.read_text())
        steps = len((work / "runs/orphan/metrics.jsonl").read_text().splitlines())
        until(lambda: len((work / "runs/orphan/metrics.jsonl").read_text().splitlines()) > steps + 3)
        run.send_signal(signal.SIGTERM)
        run.wait(60)
        last = lines_of(work / "runs/orphan/metrics.jsonl")[-1]
        assert "policy_setting" not in last and last["energy_j"]["cpu-package0"] is None, last
        assert "it is gone" in events.read_text()


@row()
def slack_policy(case):
    """A program with ops that set clocks: they take turns with the greatest clock, change no bit, and are gone at the end."""
    sys = fake_clocks(work / "sys")
    meter = {"energy.meters": [recording("package.jsonl", 30)]}
    plain = case.train(meter, {"train.until": "100000 steps", "train.stop_after": "40 steps"})
    lines = (plain.path / "program.txt").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("schedule "))
    bodies = [name for name in lines[at].split()[1:]]
    clocked = [f"set_low {name}" if i == 0 else f"set_high {name}" for i, name in enumerate(bodies)]
    extra = [x for name, khz in (("set_low", 1500000), ("set_high", 2500000)) for x in (f"body {name}", f"  %0 set_clock khz={khz} stream=compute phase=forward")]
    (work / "clocked.txt").write_text("\n".join([*lines[:at], *extra, "schedule " + " ".join(clocked), *lines[at + 1:]]) + "\n")
    env = {"MOLEN_SYSFS": str(sys)}
    case.refused("train", "tiny.toml", "--program", "clocked.txt", says=["sets clocks (set_clock)", 'energy.policy = "slack"'])
    case.refused("train", "tiny.toml", {"energy.policy": "slack"}, meter, env=env, says=["energy.policy", "no op that sets one", "molen simulate --clocks --programs"])
    words = case.words_of(["--program", "clocked.txt", meter, {"run.name": "slack", "energy.policy": "slack", "energy.slowdown": 0.5, "train.until": "100000 steps"}])
    run = started([MOLEN, "train", "tiny.toml", *words], env={**ENV, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seen = set()
    until(lambda: seen.add(clocks(sys)[0]) or {1500000, 2500000, 3000000} <= seen)
    run.send_signal(signal.SIGTERM)
    equal("its end", (run.wait(60), run.stderr.read()), (0, ""))
    equal("clocks that were seen, beside the least one, which is tried first", seen - {0, 800000}, {1500000, 2500000, 3000000})
    equal("clocks at the end", clocks(sys), [3000000, 3000000])
    steps = lines_of(work / "runs/slack/metrics.jsonl")
    equal("settings", {s.get("policy_setting") for s in steps}, {None, 3e9})
    equal("losses", [s["loss"] for s in steps[:40]], [s["loss"] for s in plain.steps])
    event, = [e for e in lines_of(work / "runs/slack/events.jsonl") if e["event"] == "policy"]
    equal("the event", (event["policy"], event["kind"], event["settings"]), ("slack", "clock", [3e9, "program"]))


# --- energy manage -----------------------------------------------------------------------------------------------------------------
def caps_file(file, power=None, energy=None, name="power", stale_after="5 s"):
    text = f'[manage]\nperiod = "0.5 s"\nhold = "3 s"\nstale_after = "{stale_after}"\n'
    if power:
        text += f'[[power_cap]]\nname = "{name}"\nnodes = ["*"]\nnode_most = "250 W"\n{power}\n'
    if energy:
        text += f'[[energy_cap]]\nname = "energy"\nnodes = ["*"]\nnode_most = "250 W"\n{energy}\n'
    (work / file).write_text(text)
    return file


@contextlib.contextmanager
def limited_node(case, name, folder, database_socket, *words, every=1):
    """A node of 200 W with its daemon and its sender: the package, and the sender's process."""
    with LimitedPackage(folder) as package, daemon(case, folder, *MAY_ASK, "--meters", "none", "--limit-with", "powercap", *words) as said:
        command = case.words_of(["energy", "send", "--to", f"unix:{database_socket}", "--every", every, "--node", name, "--meters", "rapl-powercap", "--spool", f"{name}.spool", "--obey-limits"])
        sender = started([MOLEN, *command], env={**ENV, "MOLEN_SYSFS": str(folder), "MOLEN_ENERGY_SOCKET": said["socket"]}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            yield package, said, sender
        finally:
            sender.kill()
            sender.wait()


LISTENER = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listening.listen()
print("listens", flush=True)
connection, _ = listening.accept()
print(repr(connection.recv(4096)), flush=True)
"""


def listener_of_another(case):
    """A node says nothing to another user's process at the collector's path, if it would have to obey it."""
    with tempfile.TemporaryDirectory(prefix="molen_listener_") as folder:
        os.chmod(folder, 0o777)
        path = f"{folder}/socket"
        other = subprocess.Popen(["/usr/bin/python3", "-c", LISTENER, path], cwd="/", stdout=subprocess.PIPE, text=True, user=ANOTHER, group=ANOTHER, extra_groups=[])
        try:
            equal("it listens", other.stdout.readline(), "listens\n")
            case.refused("energy", "send", "--to", f"unix:{path}", "--obey-limits", "--node", "n", "--meters", "none", "--every", 0.1, "--count", 2, "--spool", "foreign.spool", code=1, says=f"user {ANOTHER} listens there, who is neither root nor you, so it may not limit this node")
            equal("what it heard", other.stdout.readline(), "b''\n")
        finally:
            other.kill()
            other.wait()


def looks(manager_out):
    return [json.loads(line) for line in manager_out.splitlines()]


@row("energy manage --database", "energy manage --once", "energy manage --dry-run", "energy manage --json", "energy send --obey-limits", "energy daemon --limit-with", "energy daemon --limit-user")
def caps_of_a_site(case):
    """Two nodes of 200 W under a cap of 300 W: the real collector, daemons, senders and manager, whose ends all lead back to what was found."""
    manage = lambda file, *words, **keys: case.molen("energy", "manage", file, "--database", "sqlite:caps.db", *words, **keys)
    soft = caps_file("soft.toml", 'power = "300 W"\nkind = "soft"')
    hard = caps_file("hard.toml", 'power = "300 W"\nkind = "hard"')
    with collector(case, "--database", "sqlite:caps.db", "--listen", "unix:caps"), contextlib.ExitStack() as stack:
        (one, _, sender), (two, of_two, _) = (stack.enter_context(limited_node(case, f"n{i}", work / f"sys{i}", "caps", *words)) for i, words in ((1, ["--limit-user", os.geteuid()]), (2, ["--least", "powercap=120 W"])))
        until(lambda: len(rows_of("caps.db", "SELECT DISTINCT node FROM energy_periods")) == 2 and len(rows_of("caps.db", "SELECT node FROM energy_limitable WHERE limitable LIKE '%powercap%'")) == 2)

        def limiting(*words):
            """The status of the first look that limits: on a busy machine the counters of the packages run unevenly, and a period may show too little."""
            for _ in range(30):
                status, = looks(manage(soft, "--once", "--json", *words).stdout)
                if status["power_caps"][0]["limiting"]:
                    return status
                time.sleep(0.3)
            raise AssertionError(f"400 W never exceeded 300 W: {status}")

        # A dry run says what it would do, and does nothing.
        status = limiting("--dry-run")
        cap = status["power_caps"][0]
        equal("it would limit", (cap["met"], [n["node"] for n in cap["nodes"]]), (True, ["n1", "n2"]))
        close("its bound", cap["bound_w"], 300, 1e-9)
        assert rows_of("caps.db", "SELECT * FROM energy_limits") == [] and "dry run" in status["happened"][0], status
        equal("nothing is limited", (one.limit(), two.limit()), (250, 250))
        text = manage(soft, "--once", "--dry-run").stdout
        assert "soft cap power: " in text and " of 300 W by 2 nodes, " in text and "\n  n2  " in text, text
        # One look limits both, and the limits end by themselves because no other look renews them.
        limiting()
        until(lambda: one.limit() < 200 and two.limit() < 200)
        assert one.limit() + two.limit() <= 300 and one.limit() >= 20 and two.limit() >= 120, (one.limit(), two.limit())
        equal("it is recorded", rows_of("caps.db", "SELECT kind FROM energy_events WHERE node = 'cap:power'"), [("limiting",)])
        until(lambda: (one.limit(), two.limit()) == (250, 250))
        # A manager that runs keeps the cap; killed, it leaves nothing behind.
        words = case.words_of(["energy", "manage", hard, "--database", "sqlite:caps.db", "--json"])
        manager = started([MOLEN, *words], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            until(lambda: one.limit() + two.limit() <= 300)
            time.sleep(4)  # longer than `hold`
            assert one.limit() + two.limit() <= 300, (one.limit(), two.limit())
            # A sender that is gone renews nothing, and its node is not counted as 0 W.
            sender.kill()
            until(lambda: one.limit() == 250)
            assert two.limit() < 250
        finally:
            manager.kill()
        node = next(n for n in looks(manager.communicate()[0])[-1]["power_caps"][0]["nodes"] if n["node"] == "n1")
        assert node["watts"] > 50, node
        until(lambda: two.limit() == 250)
        # A daemon that is killed leaves nothing either, and its node is said to set no limits.
        manager = started([MOLEN, *words], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            until(lambda: two.limit() < 250)
            of_two["job"].kill()
            until(lambda: two.limit() == 250)
            until(lambda: "the energy daemon" in json.dumps(rows_of("caps.db", "SELECT limitable FROM energy_limitable WHERE node = 'n2'")))
        finally:
            manager.send_signal(signal.SIGTERM)
            equal("it ends at a signal", manager.wait(60), 0)
        wide = caps_file("wide.toml", 'power = "1 kW"\nkind = "hard"')
        node = next(n for n in looks(manage(wide, "--once", "--json", "--dry-run").stdout)[0]["power_caps"][0]["nodes"] if n["node"] == "n2")
        assert "the energy daemon" in node["without_limits"] and "limits" not in node, node
        # A cap below the least limits.
        case.refused("energy", "manage", caps_file("unmet.toml", 'power = "100 W"\nkind = "hard"', name="unmet"), "--database", "sqlite:caps.db", "--once", code=1, says="cannot be met")
        # Levels of energy, each once; a script has its environment and its exit status is kept.
        script = work / "warn.sh"
        script.write_text(f"#!/bin/sh\necho $MOLEN_CAP $MOLEN_CAP_EVENT $MOLEN_CAP_LEVEL >> {work}/warned\nexit 4\n")
        script.chmod(0o755)
        energy = caps_file("energy.toml", energy=f'energy = "100 J"\nperiod = "day"\nwarn_at = [50, 100, 1000]\nscript = "{script}"')
        for _ in range(2):
            status, = looks(manage(energy, "--once", "--json").stdout)
        assert status["energy_caps"][0]["percent"] > 100, status
        warned = (work / "warned").read_text().splitlines()
        equal("each level once", warned[:2], ["energy warning 50", "energy warning 100"])
        equal("the exit status", rows_of("caps.db", "SELECT DISTINCT count FROM energy_events WHERE kind = 'script'"), [(4,)])
        # A script that hangs puts off neither the looks nor the end.
        script.write_text(f"#!/bin/sh\necho $$ > {work}/hangs\nexec sleep 600\n")
        hangs = caps_file("hangs.toml", 'power = "110 W"\nkind = "soft"\n' + f'script = "{script}"\nscript_limit = "10 min"', name="hangs")
        manager = started([MOLEN, *case.words_of(["energy", "manage", hangs, "--database", "sqlite:caps.db", "--json"])], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until(lambda: (work / "hangs").exists() and (work / "hangs").read_text().endswith("\n"))
        time.sleep(2)
        manager.send_signal(signal.SIGTERM)
        equal("it ends at a signal", manager.wait(20), 0)
        assert len(looks(manager.communicate()[0])) >= 3
        until(lambda: not pathlib.Path("/proc", (work / "hangs").read_text().strip()).exists())
        assert "was killed at the end of the manager" in rows_of("caps.db", "SELECT text FROM energy_events WHERE node = 'cap:hangs' AND kind = 'script'")[0][0]
    # Limits are renewed in time whatever the period of the sender.
    slow = caps_file("slow.toml", 'power = "110 W"\nkind = "hard"', stale_after="60 s")
    with collector(case, "--database", "sqlite:slow.db", "--listen", "unix:slow"), limited_node(case, "n", work / "sys_slow", "slow", every=600) as (package, _, _):
        manager = started([MOLEN, *case.words_of(["energy", "manage", slow, "--database", "sqlite:slow.db"])], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            until(lambda: package.limit() < 250)
            for _ in range(80):  # twice as long as `hold`, and some
                time.sleep(0.1)
                assert package.limit() < 250, "it was not renewed"
        finally:
            manager.kill()
            manager.wait()
    if os.geteuid() == 0:
        listener_of_another(case)
        with LimitedPackage(work / "other"), daemon(case, work / "other", "--meters", "none", "--allow-user", ANOTHER, "--limit-with", "powercap") as said:
            assert "--limit-user" in asked_by_another(said["socket"], {"request": "limitable"})[1]["refused"]
        with LimitedPackage(work / "others"), daemon(case, work / "others", "--meters", "none", "--allow-user", ANOTHER, "--limit-with", "powercap", "--limit-user", ANOTHER) as said:
            equal("what it may limit", len(asked_by_another(said["socket"], {"request": "limitable"})[1]["limitable"]["settings"]), 1)
    caps = ["--database", "sqlite:caps.db", "--once"]
    case.refused("energy", "manage", "none.toml", *caps, says="none.toml")
    case.refused("energy", "manage", caps_file("bad.toml", 'power = "300"\nkind = "soft"'), *caps, says="bad.toml:9: power_cap.power: '300' must be a power")
    case.refused("energy", "manage", soft, "--database", "caps.db", says="sqlite:FILE")
    case.refused("energy", "manage", soft, says="--database")
    case.refused("energy", "send", "--to", "192.0.2.1:4722", "--obey-limits", "--node", "n", says="--obey-limits: 192.0.2.1:4722 may be taken by somebody else")
    case.refused("energy", "send", "--to", "127.0.0.1:4722", "--obey-limits", "--node", "n", says="--token-file")
    case.refused("energy", "daemon", "--limit-with", "nvml-clock", says="--limit-with: 'nvml-clock' must be one of powercap, amdgpu-power, nvml-power")
    case.refused("energy", "daemon", "--limit-user", "root", says="--limit-user: there is nothing to limit")
