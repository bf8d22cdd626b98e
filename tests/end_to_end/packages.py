"""What stands in for parts of the machine, for the rows of energy: a package, and a calibration of its power."""
import json
import os
import re
import threading
import time

from harness import work


def power_of_this_machine(name, watts, scope="cpu-package0", cpus=None):
    """Writes a file as `molen energy calibrate` would for this machine, with the same power at any utilisation, and returns its name."""
    model = next((x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), "")
    part = {"meter": "rapl-perf: made up", "source": "counter", "points": [{"utilisation": 0, "watts": watts, "least_w": 0.9 * watts, "most_w": 1.2 * watts}]}
    (work / name).write_text(json.dumps({"power_format": 1, "host": "n1", "created": "2026-01-01T00:00:00Z", "processor": model, "cpus": cpus or processors(), "scopes": {scope: part}}))
    return name


def processors():
    """The number of processors of this machine, of which this process may use fewer."""
    return sum(bool(re.match(r"cpu\d", x)) for x in open("/proc/stat"))


class LimitedPackage:
    """A package of 200 W in place of /sys, whose counter runs no faster than its power limit."""

    def __init__(self, folder, watts=200.0):
        self.zone, self.watts, self.stop = folder / "class/powercap/intel-rapl:0", watts, threading.Event()
        self.zone.mkdir(parents=True)
        for name, value in (("name", "package-0"), ("enabled", 1), ("max_energy_range_uj", 2**40), ("constraint_0_name", "long_term"), ("constraint_0_power_limit_uw", 250_000_000), ("constraint_0_max_power_uw", 250_000_000), ("constraint_0_min_power_uw", 20_000_000)):
            (self.zone / name).write_text(f"{value}\n")
        self.energy = os.open(self.zone / "energy_uj", os.O_CREAT | os.O_WRONLY)
        self.env = {"MOLEN_SYSFS": str(folder), "XDG_RUNTIME_DIR": str(folder / "runtime")}
        os.pwrite(self.energy, b"0000000000000000\n", 0)
        self.thread = threading.Thread(target=self.count, daemon=True)
        self.thread.start()

    def limit(self):
        file = self.zone / "constraint_0_power_limit_uw"
        return int(file.read_text() or 0) * 1e-6 if file.exists() else 0.0

    def count(self):
        joules, before = 0.0, time.monotonic()
        while not self.stop.wait(0.001):
            now = time.monotonic()
            joules, before = joules + min(self.watts, self.limit() or self.watts) * (now - before), now
            os.pwrite(self.energy, b"%016d\n" % int(joules * 1e6), 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)
