"""A package that stands in for the machine's, for the rows of energy."""
import os
import threading
import time


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
