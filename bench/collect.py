#!/usr/bin/env python3
"""The collector of energy under load: nodes that report, and what that costs.

usage: collect.py MOLEN [--nodes N] [--every S] [--periods N] [--seconds S] [--database sqlite|postgres|both] [--no-restart]
Each node has a connection of its own and sends a batch of --periods periods every --every seconds; the nodes take turns. In the middle the
database restarts: PostgreSQL is stopped in order, and SQLite is locked by another process for two seconds. A node that loses the collector
sends again what was not acknowledged. Prints the records of a second, the longest wait for an acknowledgement without and with the restart,
and the share of one core that the collector and the server of the database took. Exit status 1 where a batch is missing or counts twice.
"""
import argparse
import collections
import glob
import json
import os
import pathlib
import pwd
import selectors
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    """Of a process so far; 0 if it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


class Sqlite:
    """Its work is part of the collector's."""

    def __init__(self, folder):
        self.file = folder / "site.db"
        self.words = f"sqlite:{self.file}"

    def query(self, sql):
        with sqlite3.connect(self.file, timeout=60) as connection:
            return connection.execute(sql).fetchone()

    def restart(self):
        other = sqlite3.connect(self.file, timeout=60, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        time.sleep(2)
        other.execute("ROLLBACK")
        other.close()

    def cpu_seconds(self):
        return 0.0

    def close(self):
        pass


class Postgres:
    """A server with its files in a folder, a socket there, and no port."""

    def __init__(self, folder):
        self.programs = pathlib.Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1])
        self.folder = folder / "postgres"
        self.folder.mkdir()
        os.chmod(folder, 0o755)
        self.user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self.user:
            os.chown(self.folder, pwd.getpwnam("postgres").pw_uid, -1)
        self.run("initdb", "-U", "molen", "-A", "trust", "-E", "UTF8", "--locale=C")
        self.start()
        self.words = f"postgresql://molen@/postgres?host={self.folder}"

    def run(self, program, *words):
        subprocess.run([*self.user, self.programs / program, "-D", self.folder / "data", *words], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def start(self):
        self.run("pg_ctl", "-w", "-l", self.folder / "log", "-o", f"-k {self.folder} -c listen_addresses=", "start")

    def restart(self):
        self.run("pg_ctl", "-w", "-m", "fast", "stop")
        time.sleep(1)
        self.start()

    def query(self, sql):
        done = subprocess.run([self.programs / "psql", "-h", self.folder, "-U", "molen", "-At", "-F", "\t", "-c", sql, "postgres"], check=True, capture_output=True, text=True)
        return tuple(float(x) for x in done.stdout.split())

    def cpu_seconds(self):
        """Of the server with all its processes, as far as they live: of those that ended it has the sum."""
        main = int((self.folder / "data/postmaster.pid").read_text().split()[0])
        fields = pathlib.Path(f"/proc/{main}/stat").read_text().rsplit(")", 1)[1].split()
        ended = (int(fields[13]) + int(fields[14])) / TICKS
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(main)], capture_output=True, text=True).stdout.split()
        return cpu_seconds(main) + ended + sum(map(cpu_seconds, children))

    def close(self):
        self.run("pg_ctl", "-w", "-m", "immediate", "stop")


class Node:
    def __init__(self, index):
        self.name, self.socket, self.unread, self.unsent = f"n{index:05}", None, b"", b""
        self.waiting = collections.OrderedDict()  # number: (line, time)
        self.seq = 0


class Nodes:
    """All nodes, in this thread."""

    def __init__(self, address, count, every, periods):
        self.address, self.every, self.periods = address, every, periods
        self.nodes = [Node(i) for i in range(count)]
        self.selector = selectors.DefaultSelector()
        self.acknowledged = 0
        self.longest = 0.0  # wait for an acknowledgement

    def connect(self, node):
        node.socket = socket.create_connection(self.address)
        node.socket.setblocking(False)
        node.unread, node.unsent = b"", json.dumps({"molen_energy": 1, "node": node.name}).encode() + b"\n" + b"".join(line for line, _ in node.waiting.values())
        self.selector.register(node.socket, selectors.EVENT_READ, node)
        self.push(node)

    def push(self, node):
        if node.unsent:
            try:
                node.unsent = node.unsent[node.socket.send(node.unsent):]
            except BlockingIOError:
                pass

    def report(self, node):
        node.seq += 1
        start = 1.7e9 + self.every * node.seq
        # Whole joules, so that their sum is exact.
        periods = [{"scope": f"gpu{i}", "start": start, "end": start + self.every, "joules": (node.seq + i) % 300, "meter": "nvml", "source": "counter", "counted": True, "job": "77", "user": "ann"} for i in range(self.periods)]
        line = json.dumps({"session": "bench", "seq": node.seq, "periods": periods}, separators=(",", ":")).encode() + b"\n"
        node.waiting[node.seq] = (line, time.monotonic())
        node.unsent += line
        self.push(node)

    def read(self, node):
        node.unread += node.socket.recv(65536)
        *lines, node.unread = node.unread.split(b"\n")
        for answer in map(json.loads, lines):
            if "refused" in answer:
                raise RuntimeError(f"{node.name} was refused: {answer['refused']}")
            while node.waiting and next(iter(node.waiting)) <= answer.get("ack", 0):
                _, (_, sent) = node.waiting.popitem(last=False)
                self.longest = max(self.longest, time.monotonic() - sent)
                self.acknowledged += 1

    def run(self, seconds, reporting=True):
        """Reports for so long; or waits, at most so long, until everything is acknowledged."""
        start, turn = time.monotonic(), 0
        while (now := time.monotonic() - start) < seconds and (reporting or any(n.waiting for n in self.nodes)):
            while reporting and turn < now / self.every * len(self.nodes):
                self.report(self.nodes[turn % len(self.nodes)])
                turn += 1
            for key, _ in self.selector.select(0.005):
                self.read(key.data)
            for node in self.nodes:
                self.push(node)

    def expected(self):
        """Batches, and the joules of all of them."""
        joules = sum((seq + i) % 300 for n in self.nodes for seq in range(1, n.seq + 1) for i in range(self.periods))
        return sum(n.seq for n in self.nodes), joules


def measure(molen, kind, o):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="molen_collect_"))
    database = (Sqlite if kind == "sqlite" else Postgres)(folder)
    job = subprocess.Popen([molen, "energy", "collect", "--database", database.words, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        job.stdout.readline()
        host, port = job.stdout.readline().removeprefix("listening on ").strip().rsplit(":", 1)
        nodes = Nodes((host, int(port)), o.nodes, o.every, o.periods)
        for node in nodes.nodes:
            nodes.connect(node)
        begin, cpu, server = time.monotonic(), cpu_seconds(job.pid), database.cpu_seconds()
        nodes.run(o.seconds / 2)
        took, cpu, server = time.monotonic() - begin, cpu_seconds(job.pid) - cpu, database.cpu_seconds() - server
        rate, usual = nodes.acknowledged * o.periods / took, nodes.longest
        restart = threading.Thread(target=database.restart)
        if not o.no_restart:
            restart.start()
        nodes.run(o.seconds / 2)
        if not o.no_restart:
            restart.join()
        nodes.run(60, reporting=False)
        batches, joules = nodes.expected()
        found = database.query("SELECT COUNT(*), SUM(joules) FROM energy_periods")
        wrong = [] if nodes.acknowledged == batches else [f"{batches - nodes.acknowledged} batches were not acknowledged"]
        if tuple(map(float, found)) != (batches * o.periods, joules):
            wrong.append(f"the database has {found}, where {batches * o.periods} periods with {joules} J were sent")
        print(f"{kind}: {o.nodes} nodes, {rate:.0f} records/s; an acknowledgement after {usual:.2f} s at most, {nodes.longest:.2f} s with the restart; "
              f"of one core, the collector took {100 * cpu / took:.0f} %" + (f" and the server {100 * server / took:.0f} %" if server else "") +
              f"; {batches} batches, {joules} J: " + ("all there once" if not wrong else "; ".join(wrong)), flush=True)
        return not wrong
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(60)
        database.close()
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("molen")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--periods", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--no-restart", action="store_true")
    o = parser.parse_args()
    good = [measure(o.molen, kind, o) for kind in (("sqlite", "postgres") if o.database == "both" else (o.database,))]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
