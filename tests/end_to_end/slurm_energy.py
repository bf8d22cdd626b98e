#!/usr/bin/env python3
"""The plugin for Slurm on a real Slurm of two nodes: the option, the environment of tasks, and the energy of jobs in the collector's database.

usage: slurm_energy.py MOLEN PLUGIN     (as root, on a machine whose Slurm the test may start and stop)
MOLEN_SLURM_SCRIPTS names a folder with two programs: `up 2 --plugstack FILE [--conf FILE]` starts a cluster of two nodes
whose host names are n1 and n2 (with more lines of slurm.conf), and `down` ends it.
Each node reads a recording instead of meters, so the watts are known. `tools/nightly.sh slurm` runs this; `make test` does not.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time

from harness import MOLEN, SKIPPED, finish, ok

PLUGIN = pathlib.Path(sys.argv[2]).resolve()
SCRIPTS = os.environ.get("MOLEN_SLURM_SCRIPTS")
WATTS = {"n1": 100.0, "n2": 60.0}
SLACK_S = 2.5  # of the seconds that count: Slurm starts a step and ends it around its tasks, and a busy machine starts the sender late


def not_here(why):
    print(f"SKIPPED Slurm: {why}", flush=True)
    sys.exit(SKIPPED)


if not SCRIPTS:
    not_here("MOLEN_SLURM_SCRIPTS is not set")
if os.geteuid() != 0:
    not_here("only root can start a cluster")
if not PLUGIN.exists():
    not_here(f"{PLUGIN} is not there; the build makes it where slurm/spank.h is found")
# The nodes have a /tmp of their own.
folder = pathlib.Path(tempfile.mkdtemp(prefix="molen_slurm_", dir="/var/tmp"))
folder.chmod(0o755)
out = folder / "out"
out.mkdir()
out.chmod(0o777)
plugin = folder / "molen_energy.so"
shutil.copy(PLUGIN, plugin)
token = folder / "token"
token.write_text("0123456789abcdef0123\n")
token.chmod(0o600)
for node, watts in WATTS.items():
    (folder / f"{node}.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": watts * t}}) + "\n" for t in (0.0, 1e6)))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
plugstack = folder / "plugstack.conf"
USUAL = {"molen": MOLEN, "collector": f"127.0.0.1:{port}", "token": str(token), "spool": f"{folder}/spool-%h", "every": "0.5", "meters": f"replay:{folder}/%h.jsonl", "log": f"{folder}/slurmd-%h.log"}


def configure(**other):
    """What plugstack.conf has from the next step on."""
    plugstack.write_text(f"optional {plugin} " + " ".join(f"{k}={v}" for k, v in {**USUAL, **other}.items() if v is not None) + "\n")


def command(*words, user=None, group="nogroup", env=None, code=0, cwd=out, seconds=120):
    as_user = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"] if user else []
    r = subprocess.run([*as_user, *map(str, words)], cwd=cwd, env={"PATH": os.environ["PATH"], "HOME": "/", **(env or {})}, capture_output=True, text=True, timeout=seconds)
    assert code is None or r.returncode == code, (words, r.returncode, r.stdout, r.stderr)
    return r


def until(condition, what, seconds=40):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not come to that: {what}"
        time.sleep(0.1)


def submit(script, *options, user="nobody"):
    return command("sbatch", "--parsable", "-o", out / "job-%j.txt", *options, "--wrap", script, user=user).stdout.strip()


def is_over(job):
    return not command("squeue", "-h", "-j", job, code=None).stdout.strip()


def rows(sql, *values):
    with contextlib.closing(sqlite3.connect(folder / "site.db", timeout=30)) as database:
        return database.execute(sql, values).fetchall()


def stops(job):
    """(node, step) of each sender of a job that has ended, and whose records are stored."""
    return {(node, dict(word.split("=") for word in text.split())["step"]) for node, text in rows("SELECT node, text FROM energy_events WHERE kind = 'job_stop' AND text LIKE ?", f"job={job} %")}


def account(by, *words, database=f"sqlite:{folder}/site.db"):
    found = command(MOLEN, "energy", "account", "--database", database, "--by", by, *words, "--format", "json")
    return {r["key"]: r["energy_j"] for r in json.loads(found.stdout)["rows"]}


def processes():
    """Number, words and state of each process; one that ends meanwhile is left out."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            name, rest = (process / "stat").read_text(errors="replace").split("(", 1)[1].rsplit(")", 1)
            yield int(process.name), words, name == "molen" and rest.split()[0] == "Z"


def senders():
    """Processes of molen that belong to this test's spools, and those that nobody has collected."""
    return [(number, words) for number, words, zombie in processes() if zombie or any(w.startswith(f"--spool={folder}/") for w in words)]


def moment(name):
    return float((out / name).read_text())


def log(node):
    """What slurmd and the senders of a node have said."""
    texts = [pathlib.Path(f"/var/log/molen-slurm/slurmd-{node}.log"), folder / f"slurmd-{node}.log"]
    return "".join(t.read_text(errors="replace") for t in texts if t.exists())


def expect(name, joules, watts, seconds):
    ok(name, abs(joules / watts - seconds) < SLACK_S, f"{joules} J at {watts} W are {joules / watts:.2f} s, and it took {seconds:.2f} s")


class Postgres:
    """A server of the test's own, which may crash."""

    def __init__(self):
        self.folder = folder / "postgres"
        self.folder.mkdir()
        shutil.chown(self.folder, "postgres")
        self.uri = f"postgresql://molen@/postgres?host={self.folder}"

    def run(self, program, *words):
        programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        command("runuser", "-u", "postgres", "--", programs / program, "-D", self.folder / "data", *words)

    def start(self):
        self.run("pg_ctl", "-w", "-l", self.folder / "log", "-o", f"-k {self.folder} -c listen_addresses=", "start")

    def crash(self):
        self.run("pg_ctl", "-w", "-m", "immediate", "stop")

    def __enter__(self):
        self.run("initdb", "-U", "molen", "-A", "trust", "-E", "UTF8", "--locale=C")
        self.start()
        return self

    def __exit__(self, *_):
        self.crash()


class Collector:
    def __init__(self, database=f"sqlite:{folder}/site.db"):
        self.database = database

    def __enter__(self):
        self.start()
        return self

    def start(self):
        self.job = subprocess.Popen([MOLEN, "energy", "collect", "--database", self.database, "--listen", f"127.0.0.1:{port}", "--token-file", token], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.job.stdout.readline().startswith("records go to"), self.job.stderr.read()

    def stop(self):
        self.job.send_signal(signal.SIGTERM)
        return self.job.communicate(timeout=60)

    def __exit__(self, *_):
        if self.job.poll() is None:
            self.job.kill()
            self.job.communicate()


def the_option():
    for words in (["srun"], ["sbatch", "--wrap", "true"], ["salloc", "true"]):
        r = command(*words[:1], "-n1", "--energy=fast", *words[1:], *(["true"] if words == ["srun"] else []), user="nobody", code=None)
        ok(f"{words[0]}: a policy that is not there is refused at once", r.returncode != 0 and "--energy: 'fast' is none of the policies off, monitor" in r.stderr, r)
    r = command("srun", "-n1", "--energy=min_energy,slowdown=2", "true", user="nobody", code=None)
    ok("a share above 1 is refused", r.returncode != 0 and "slowdown='2' must be a share below 1" in r.stderr, r)
    ok("the help names it", "--energy=POLICY" in command("srun", "--help").stdout)
    seen = "env | grep ^MOLEN_ENERGY | sort | tr '\\n' ' '"
    of = lambda r: r.stdout.strip()
    r = command("srun", "-n1", "--energy=min_energy,slowdown=5%", "sh", "-c", seen, user="nobody")
    ok("tasks of srun have it", of(r) == "MOLEN_ENERGY_POLICY=min_energy MOLEN_ENERGY_SLOWDOWN=5%", r)
    r = command("srun", "-n1", "sh", "-c", seen, user="nobody")
    ok("without the option nothing is set", of(r) == "", r)
    r = command("srun", "-n1", "--energy=monitor,power_budget=2 kW", "sh", "-c", seen, user="nobody", env={"MOLEN_ENERGY_SLOWDOWN": "0.5"})
    ok("it replaces all that was set", of(r) == "MOLEN_ENERGY_POLICY=monitor MOLEN_ENERGY_POWER_BUDGET=2 kW", r)
    r = command("salloc", "-n1", "--energy=sweep", "sh", "-c", f"{seen}; srun -n1 sh -c \"{seen}\"", user="nobody")
    ok("the command of salloc has it, and its steps", of(r).split() == ["MOLEN_ENERGY_POLICY=sweep"] * 2, r)
    inner = f"{seen}; echo; srun -n1 sh -c \"{seen}\"; echo; srun -n1 --energy=off sh -c \"{seen}\""
    job = submit(inner, "-N1", "--energy=min_energy,slowdown=0.05")
    until(lambda: is_over(job), "the end of a job")
    asked = "MOLEN_ENERGY_POLICY=min_energy MOLEN_ENERGY_SLOWDOWN=0.05"
    ok("a batch script has it, its steps inherit it, and a step may ask for another one", [x.strip() for x in (out / f"job-{job}.txt").read_text().splitlines()] == [asked, asked, "MOLEN_ENERGY_POLICY=none"], (out / f"job-{job}.txt").read_text())
    r = command("srun", "-n1", "echo", "ran", user="nobody", env={"_SLURM_SPANK_OPTION_molen_energy_energy": "x;\x1b[2J"}, code=None)
    ok("a text that was forged past the check starts nothing", (r.returncode == 0 and of(r) == "ran") or "--energy: 'x;?[2J' is none of" in r.stderr, r)
    config = command("srun", "-n1", "--energy=monitor", MOLEN, "config", "show", "--model", "llama-tiny", user="nobody", cwd="/")
    ok("molen says where the value is from", any(x.startswith('policy = "monitor"') and x.endswith("# MOLEN_ENERGY_POLICY") for x in config.stdout.splitlines()), config.stdout)


def two_steps():
    """A batch script on n1 with two steps on both nodes, which n1's batch step contains."""
    stamp = lambda name: f"date +%s.%N > {out}/{name}"
    step = lambda name, seconds: f"srun -N2 -n2 sh -c '{stamp(f'{name}.$(hostname).begin')}; sleep {seconds}; {stamp(f'{name}.$(hostname).end')}'"
    job = submit(f"{stamp('begin')}; {step('a', 6)}; sleep 2; {step('b', 4)}; {stamp('end')}", "-N2", "--ntasks-per-node=1")
    until(lambda: is_over(job), "the end of a job of two steps", 90)
    until(lambda: len(stops(job)) == 3, "the records of its senders")
    ok("one sender measures a node at a time", stops(job) == {("n1", "batch"), ("n2", "0"), ("n2", "1")}, stops(job))
    joules = dict(rows("SELECT node, SUM(joules) FROM energy_periods WHERE job = ? GROUP BY node", job))
    expect("n1: the batch step and what ran within it", joules["n1"], WATTS["n1"], moment("end") - moment("begin"))
    expect("n2: both steps", joules["n2"], WATTS["n2"], sum(moment(f"{s}.n2.end") - moment(f"{s}.n2.begin") for s in "ab"))
    ok("the account has both nodes", abs(account("job")[job] - sum(joules.values())) < 1e-6, account("job"))
    ok("its user", rows("SELECT DISTINCT user_name FROM energy_periods WHERE job = ?", job) == [("nobody",)])
    starts = rows("SELECT COUNT(*) FROM energy_events WHERE kind = 'job_start' AND text LIKE ?", f"job={job} %")
    ok("each has a start and an end", starts == [(3,)], starts)
    return job, sum(joules.values())


def steps_at_once():
    """Two steps of an allocation that overlap on one node: the second one takes over when the first ends."""
    before = time.time()
    script = "srun --overlap -n1 -N1 -w n2 sleep 4 & sleep 1; srun --overlap -n1 -N1 -w n2 sleep 8 & wait"
    command("salloc", "-N1", "-w", "n2", "--no-shell", "-J", "once", user="games", group="games", code=None)
    job = command("squeue", "-h", "-n", "once", "-o", "%i").stdout.split()[0]
    begin = time.time()
    command("sh", "-c", script, user="games", group="games", env={"SLURM_JOB_ID": job})
    took = time.time() - begin
    command("scancel", job, user="games")
    until(lambda: len(stops(job)) == 2, "both senders")
    ok("both steps were measured in turn", stops(job) == {("n2", "0"), ("n2", "1")}, stops(job))
    (joules, first, last), = rows("SELECT SUM(joules), MIN(start_s), MAX(end_s) FROM energy_periods WHERE job = ?", job)
    expect("the time of both counts once", joules, WATTS["n2"], took)
    ok("and has no long gap", (last - first) - joules / WATTS["n2"] < 1.5 and first > before, (first, last, joules))
    ok("by user", abs(account("user")["games"] - joules) < 1e-6, account("user"))
    ok("by group", abs(account("group")["games"] - joules) < 1e-6, account("group"))


def nothing_twice():
    for node in WATTS:
        periods = rows("SELECT start_s, end_s, job, step, joules FROM energy_periods WHERE node = ? ORDER BY start_s", node)
        twice = [(a, b) for a, b in zip(periods, periods[1:]) if b[0] < a[1] - 1e-3]
        ok(f"{node}: no moment is in two periods ({len(periods)} periods)", len(periods) > 10 and not twice, twice)
        # A busy machine reads the clock later than the meter.
        wrong = [p for p in periods if abs(p[4] / WATTS[node] - (p[1] - p[0])) > 0.2]
        ok(f"{node}: each period has its watts", not wrong, wrong)


def a_cancelled_job():
    job = submit("exec sleep 1000", "-N1", "-w", "n1")
    until(lambda: rows("SELECT COUNT(*) FROM energy_periods WHERE job = ?", job)[0][0] >= 4, "periods of a job that runs")
    begin, = rows("SELECT MIN(start_s) FROM energy_periods WHERE job = ?", job)[0]
    command("scancel", job, user="nobody")
    cancelled = time.time()
    until(lambda: is_over(job) and stops(job) == {("n1", "batch")}, "the end of a cancelled job")
    (joules, last), = rows("SELECT SUM(joules), MAX(end_s) FROM energy_periods WHERE job = ?", job)
    ok("a cancelled job: its last period is stored", cancelled - 0.5 < last < cancelled + SLACK_S + 5, (cancelled, last))
    expect("and its joules", joules, WATTS["n1"], last - begin)
    until(lambda: not senders(), "no sender and no zombie is left")
    ok("no process is left", not senders(), senders())


def a_collector_that_is_away(collector):
    collector.stop()
    begin = time.monotonic()
    job, *short = [submit(f"sleep {seconds}", "-N1", "-w", "n1", "--exclusive") for seconds in (3, 1, 1, 1)]
    until(lambda: all(map(is_over, [job, *short])), "the end of jobs without a collector", 60)
    took = time.monotonic() - begin
    ok("jobs do not notice that the collector is away", took < 30, took)
    until(lambda: not senders(), "no sender is left")
    ok("it is in the log of the node", "records are kept in" in log("n1"), log("n1")[-2000:])
    stored = rows("SELECT COUNT(*) FROM energy_periods WHERE job = ?", job)
    ok("nothing is stored meanwhile", stored == [(0,)], stored)
    collector.start()
    after = submit("sleep 1", "-N1", "-w", "n1", "--exclusive")
    until(lambda: all(stops(j) for j in (job, *short, after)), "the records of all jobs, which the next one sends")
    joules = dict(rows("SELECT node, SUM(joules) FROM energy_periods WHERE job = ? GROUP BY node", job))
    expect("what waited in the spool", joules["n1"], WATTS["n1"], 3)


def a_database_that_crashes(sqlite):
    """The same port, and PostgreSQL behind it, whose server ends as in a crash while a job runs, and comes back."""
    sqlite.stop()
    with Postgres() as server, Collector(server.uri) as collector:
        job = submit("srun -N2 -n2 sleep 8", "-N2", "--ntasks-per-node=1", user="games")
        nodes = lambda: account("node", "--job", job, database=server.uri)  # noqa: E731
        until(lambda: set(nodes()) == set(WATTS), "first periods of both nodes")
        server.crash()
        time.sleep(3)
        server.start()
        until(lambda: is_over(job), "the end of a job whose database crashed", 60)
        until(lambda: not senders(), "no sender is left")
        ended = lambda: sum(e["kind"] == "job_stop" for e in json.loads(command(MOLEN, "energy", "account", "--database", server.uri, "--events", "--job", job, "--format", "json").stdout)["events"])  # noqa: E731
        until(lambda: ended() == 2, "the last records of both nodes")
        seconds = {r["key"]: r["seconds"] for r in json.loads(command(MOLEN, "energy", "account", "--database", server.uri, "--by", "node", "--job", job, "--format", "json").stdout)["rows"]}
        for node, joules in nodes().items():
            # No moment is missing and none is there twice: the joules are the watts times the seconds that periods cover.
            ok(f"{node}: nothing is lost or doubled", abs(joules / WATTS[node] - seconds[node]) < 0.2 and seconds[node] > 7, (joules, seconds))
        together = account("job", database=server.uri)[job]
        ok("the job has both nodes", abs(together - sum(nodes().values())) < 1e-6, together)
        for by, key in (("user", "games"), ("group", "nogroup"), ("step", f"{job}.0")):
            ok(f"by {by} in PostgreSQL", key in account(by, "--job", job, database=server.uri), account(by, database=server.uri))
        collector.stop()
    sqlite.start()


def what_is_wrong_on_a_node():
    """The step goes on, and slurmd's log says why its energy is missing."""
    for name, other, says in (("no molen", {"molen": "/none/molen"}, "/none/molen: No such file or directory"),
                              ("a folder that cannot be", {"spool": "/proc/none/spool"}, "/proc/none/spool: No such file or directory"),
                              ("no address", {"collector": None}, "plugstack.conf: collector= is missing: no energy is recorded"),
                              ("a word that is not known", {"evry": "1"}, "plugstack.conf: no argument is called 'evry'"),
                              ("a token that others may read", {"token": str(folder / "n1.jsonl")}, "other users may open this file")):
        configure(**other)
        begin = time.monotonic()
        r = command("srun", "-n1", "-w", "n1", "echo", "ran", user="nobody")
        ok(f"{name}: the step runs", r.stdout == "ran\n" and "molen" not in r.stderr and time.monotonic() - begin < 20, (r, time.monotonic() - begin))
        until(lambda: says in log("n1"), f"{name}: '{says}' in the log of the node", 10)
        ok(f"{name}: it is in the log of the node", True)
    configure()
    until(lambda: not senders(), "no sender is left")


def a_killed_daemon():
    job = submit("exec sleep 60", "-N1", "-w", "n2")
    until(lambda: rows("SELECT COUNT(*) FROM energy_periods WHERE job = ?", job)[0][0] >= 2, "periods of a job that runs")
    daemons = [number for number, words, _ in processes() if words[0].startswith(f"slurmstepd: [{job}.")]
    ok("the daemon of the step is there", len(daemons) == 1, daemons)
    os.kill(daemons[0], signal.SIGKILL)
    until(lambda: stops(job) == {("n2", "batch")}, "the last records of a step whose daemon was killed")
    until(lambda: not senders(), "no sender is left")
    ok("a killed daemon: its sender has ended by itself", not senders(), senders())
    command("scancel", job, code=None)


def a_step_of_the_whole_job():
    """Where Slurm keeps a step `extern` on each node of a job, that one has the joules, however many others there are."""
    job = submit("srun -N2 -n2 sleep 2; srun -N2 -n2 sleep 2", "-N2", "--ntasks-per-node=1")
    until(lambda: is_over(job) and len(stops(job)) == 2, "the end of a job with a step extern")
    ok("the step extern measures on each node", stops(job) == {("n1", "extern"), ("n2", "extern")}, stops(job))


@contextlib.contextmanager
def cluster(*options):
    made = subprocess.run([pathlib.Path(SCRIPTS) / "up", "2", "--plugstack", plugstack, *options], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode != 0:
        not_here(f"no cluster: {made.stdout.strip().splitlines()[-1:]}")
    try:
        yield
    finally:
        subprocess.run([pathlib.Path(SCRIPTS) / "down"], stdout=subprocess.DEVNULL)
        left = senders()
        for pid, _ in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    ok("nothing is left after the cluster", not left, left)


configure()
with Collector() as collector:
    with cluster():
        the_option()
        two_steps()
        steps_at_once()
        a_cancelled_job()
        a_collector_that_is_away(collector)
        a_database_that_crashes(collector)
        nothing_twice()
        what_is_wrong_on_a_node()
        a_killed_daemon()
    (folder / "more.conf").write_text("PrologFlags=contain\nFirstJobId=1000\n")
    with cluster("--conf", folder / "more.conf"):
        a_step_of_the_whole_job()
        nothing_twice()
shutil.rmtree(folder)
finish("slurm_energy")
