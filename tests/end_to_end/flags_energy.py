"""Rows of energy collect and energy send."""
import contextlib
import fcntl
import json
import os
import pwd
import signal
import sqlite3
import subprocess
import time

from effects import close, equal, row
from harness import ENV, MOLEN, work

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
     "energy send --job", "energy send --step", "energy send --user", "energy account --database")
def collect_and_send(case):
    meter = recording("forty.jsonl", 40)
    with collector(case, "--database", "sqlite:site.db", "--listen", "127.0.0.1:0", "--listen", "unix:socket") as said:
        tcp, local = said["addresses"]
        equal("the second address", local, "unix:socket")
        start = time.time()
        case.molen("energy", "send", "--to", tcp, "--every", 0.3, "--count", 3, "--node", "first", "--meters", meter, "--spool", "a.spool", "--job", "77", "--step", "2", "--user", "ann")
        took = time.time() - start
        case.molen("energy", "send", "--to", local, "--every", 0.1, "--count", 2, "--meters", meter, "--spool", "b.spool")
        periods = rows_of("site.db", "SELECT start_s, end_s, joules, scope, meter, source, counted, job, step, user_name FROM energy_periods WHERE node = 'first' ORDER BY start_s")
        equal("--count", len(periods), 3)
        assert took >= 0.9, took
        for begin, end, joules, *words in periods:
            assert start - 1 <= begin < end <= start + took + 1 and 0.29 <= end - begin < took, (begin, end, start)
            close("40 W", joules / (end - begin), 40, 0.5)  # a machine that is busy reads the clock later than the meter
            equal("its words", words, ["cpu-package0", "replay", "counter", 1, "77", "2", "ann"])
        close("40 W in all", sum(p[2] for p in periods) / sum(p[1] - p[0] for p in periods), 40, 0.2)
        for one, two in zip(periods, periods[1:]):
            equal("periods follow each other", one[1], two[0])
        host = os.uname().nodename
        equal("the host is the node, and no job is known", rows_of("site.db", f"SELECT DISTINCT job, step, user_name FROM energy_periods WHERE node = '{host}'"), [(None, None, None)])
        equal("of each node", rows_of("site.db", "SELECT nodes FROM energy_by_job"), [(1,)])
        equal("events", [k for k, in rows_of("site.db", "SELECT kind FROM energy_events WHERE node = 'first' ORDER BY seq")], ["start", "job_start", "job_stop", "stop"])
        equal("the job of an event", rows_of("site.db", "SELECT DISTINCT text FROM energy_events WHERE kind LIKE 'job_%'"), [("job=77 step=2 user=ann",)])
        assert "first" in (work / "a.spool").read_text() and "first" not in (work / "b.spool").read_text()
    assert "with 5 periods and 6 events" in said["out"] and not said["err"], said
    assert not (work / "socket").exists()
    # The account of the database. It needs no collector.
    account = ["energy", "account", "--database", "sqlite:site.db"]
    asked = lambda *words: {r["key"]: r for r in json.loads(case.molen(*account, *words, "--format", "json").stdout)["rows"]}
    joules = sum(j for _, _, j, *_ in periods)
    equal("by node", set(asked()), {"first", host})
    close("its joules", asked()["first"]["energy_j"], joules, 1e-12)
    equal("by job", {k: r["nodes"] for k, r in asked("--by", "job").items()}, {"": 1, "77": 1})
    close("by user", asked("--by", "user")["ann"]["energy_j"], joules, 1e-12)
    equal("by day", sum(r["nodes"] > 0 for r in asked("--by", "day").values()) in (1, 2), True)
    equal("--since", asked("--since", "2100-01-01"), {})
    equal("--until", asked("--until", "2000-01-01"), {})
    line = next(x for x in case.molen(*account).stdout.splitlines() if x.startswith("first"))
    close("kWh", float(line.split()[1]), joules / 3.6e6, 1e-3)
    case.refused(*account, "--by", "run", says="--by: 'run' is not one of node, job, user, day")
    case.refused(*account, "--format", "csv", says="--format csv")
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


def gone(job, seconds=30):
    end = time.monotonic() + seconds
    while job.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return job.poll() is not None


@row("energy send --lock", "energy send --until-hangup")
def senders_in_turn(case):
    """Senders of steps that overlap: each moment is measured once, and each sender ends with whoever holds its standard input."""
    meter = recording("hundred.jsonl", 100)
    words = ["--to", "unix:turns", "--every", 0.2, "--node", "n", "--meters", meter, "--spool", "turns.spool", "--lock", "turns.lock", "--until-hangup"]

    def step(name):
        command = case.words_of(["energy", "send", *words, "--job", "5", "--step", name])
        return subprocess.Popen([MOLEN, *command], cwd=work, env=ENV, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    periods = lambda where="1": rows_of("turns.db", f"SELECT step, start_s, end_s, joules FROM energy_periods WHERE {where} ORDER BY start_s")
    jobs = []
    try:
        with collector(case, "--database", "sqlite:turns.db", "--listen", "unix:turns"):
            outer = step("outer")
            jobs.append(outer)
            time.sleep(1)
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
            time.sleep(1.5)
            late.kill()  # the kernel lets go of what it had
            late.wait()
            last = step("last")
            jobs.append(last)
            time.sleep(1)
            last.stdin.close()
            assert gone(last) and last.returncode == 0, last.stderr.read()
        equal("who measured", sorted({p[0] for p in periods()}), ["last", "late", "outer"])
        for one, two in zip(periods(), periods()[1:]):
            assert one[2] <= two[1] + 1e-3, ("measured twice", one, two)
        takes_over = periods("step = 'late'")[0][1]
        assert abs(takes_over - ended) < 1, (takes_over, ended)
        for _, begin, end, joules in periods():
            close("100 W", joules / (end - begin), 100, 0.5)
        # While the collector is away, each sender leaves its records to the next one, which waits for the spool only.
        first, second = step("first"), step("second")
        jobs += [first, second]
        time.sleep(1)
        first.stdin.close()
        assert gone(first) and first.returncode == 0, first.stderr.read()
        time.sleep(1)
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
        time.sleep(1)
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
        time.sleep(1)
        waits.stdin.close()
        assert gone(waits, 20) and waits.returncode == 2 and "another process sends from this spool" in waits.stderr.read()
    # Without the lock a spool is refused at once; without a pipe nothing would end the sender.
    case.refused("energy", "send", "--to", "unix:turns", "--until-hangup", "--node", "n", "--spool", "none.spool", says="--until-hangup: standard input must be a pipe", launcher=["sh", "-c", 'exec "$@" </dev/null', "sh"])
    case.refused("energy", "send", "--to", "unix:turns", "--node", "n", "--lock", "none/lock", code=1, says="none/lock")


@row("energy send --uid")
def users_by_number(case):
    meter = recording("uid.jsonl", 10)
    send = ["energy", "send", "--to", "unix:uids", "--every", 0.1, "--count", 1, "--node", "n", "--meters", meter, "--spool", "uids.spool"]
    with collector(case, "--database", "sqlite:uids.db", "--listen", "unix:uids"):
        case.molen(*send, "--job", "1", "--uid", 0)
        case.molen(*send, "--job", "2", "--uid", 4294967294)
    users = dict(rows_of("uids.db", "SELECT job, user_name FROM energy_periods"))
    equal("the name, or the number where there is none", users, {"1": pwd.getpwuid(0).pw_name, "2": "4294967294"})
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
