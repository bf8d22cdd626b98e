"""Keeps what a mutation run has found so far in a file. A run that was cut off goes on from there if sources, tests and chosen mutants are the same."""
import hashlib
import json
import subprocess
import threading

SOURCES = ("src", "tests", "tools", "cmake", "CMakeLists.txt")
# No test that a mutant meets reads these files, and mutants.json is edited while survivors are read.
OTHERS = (":!tests/mutants.json", ":!tests/suites.json", ":!tests/tools", ":!tools/mutants_*.py", ":!tools/mutate.py")


def identity_of(tree, mutants, tests, budget):
    """Returns a digest of what the outcomes depend on. The tree's index has the sources as they were before mutants were put in."""
    files = subprocess.run(["git", "-C", tree, "ls-files", "-s", "--", *SOURCES, *OTHERS], capture_output=True, check=True).stdout
    chosen = [[m["number"], m["key"]] for m in mutants]
    return hashlib.sha256(files + json.dumps([chosen, tests, budget]).encode()).hexdigest()


class Progress:
    """The file has one JSON object a line. The first holds the identity of the run; each other one is a measured test or the outcome of a mutant.

    `measurement` is the identity of what measured tests depend on: a run of fewer mutants or with another budget may `reuse` them (measured.jsonl)."""

    def __init__(self, path, identity, measurement=None, reuse=False):
        self.measured, self.outcomes, self.lock, self.measurement = {}, {}, threading.Lock(), measurement
        facts = self.facts_of(path)
        goes_on = bool(facts) and facts[0].get("of") == identity
        for fact in facts[1:] if goes_on else []:
            if "test" in fact:
                self.measured[tuple(fact["test"])] = (fact["seconds"], set(fact["reaches"]))
            else:
                self.outcomes[fact["mutant"]] = fact["outcome"]
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if goes_on:
            with open(path, "a") as file:
                file.write("\n")  # the last line may lack its end
            print(f"mutate: goes on from {path.name}: {len(self.measured)} tests are measured, and {len(self.outcomes)} mutants have their outcome", flush=True)
        else:
            path.write_text("")
            self.write({"of": identity})
            earlier = self.facts_of(path.with_name("measured.jsonl")) if reuse else []
            if earlier and earlier[0].get("of") == measurement:
                print(f"mutate: {len(earlier) - 1} tests are measured already", flush=True)
                for fact in earlier[1:]:
                    self.measure(tuple(fact["test"]), (fact["seconds"], set(fact["reaches"])))

    @staticmethod
    def facts_of(path):
        facts = []
        for line in path.read_text().splitlines() if path.is_file() else []:
            try:
                facts.append(json.loads(line))
            except ValueError:  # a line that was cut off
                continue
        return facts

    def write(self, fact):
        with self.lock, open(self.path, "a") as file:
            file.write(json.dumps(fact) + "\n")

    def measure(self, test, found):
        """`found` is None where the test failed without a mutant. That is not kept: what made it fail may be gone when the run goes on."""
        self.measured[test] = found
        if found:
            self.write({"test": test, "seconds": found[0], "reaches": sorted(found[1])})

    def end(self, number, outcome):
        self.outcomes[number] = outcome
        self.write({"mutant": number, "outcome": outcome})

    def finish(self):
        """Removes the file, so that the same command measures anew. What was measured is kept for a run that may reuse it."""
        facts = [{"of": self.measurement}] + [{"test": test, "seconds": found[0], "reaches": sorted(found[1])} for test, found in self.measured.items() if found]
        self.path.with_name("measured.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
        self.path.unlink()
