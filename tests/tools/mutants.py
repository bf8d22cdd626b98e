#!/usr/bin/env python3
"""The mutation run on a source of a few lines: what it finds there, that all of it goes into one program, and that each mutant does what it says.

usage: mutants.py     (with the tree's own Python, which has libclang)
"""
import contextlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mutants_find  # noqa: E402
import mutants_progress  # noqa: E402
import mutants_run  # noqa: E402
import mutate  # noqa: E402

SOURCE = """#include <cstdio>
static int low(int a, int b) { return a * 10 - b; }
static constexpr int kFive = 5;
int seen = 0;
void note(int by) { seen += by; }
int work(int x, int y) {
  // x < y in a comment is no candidate
  if (x < y && y > 2) return low(x, y);
  note(x + y);
  return kFive;
}
#ifdef MAIN
int main() {
  const int a = work(1, 4), b = work(3, 3), c = work(4, 1);
  std::printf("%d %d %d %d", a, b, c, seen);
}
#endif
"""


class Mutants(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="molen_mutants_"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "src/base").mkdir(parents=True)
        self.file = self.folder / "src/base/a.cpp"
        self.file.write_text(SOURCE)
        self.found = mutants_find.candidates_of(self.folder, "src/base/a.cpp", f"g++ -std=c++20 -o a.o -c {self.file}")
        for number, m in enumerate(self.found):
            m["number"] = number
        self.file.write_text(mutate.instrumented(SOURCE, self.found))
        runtime = self.folder / "runtime.cpp"
        runtime.write_text(mutate.RUNTIME.replace("COUNT", "4096"))
        subprocess.run(["g++", "-std=c++20", "-DMAIN", self.file, runtime, "-o", self.folder / "a"], check=True)

    def said(self, **environment):
        return subprocess.run([self.folder / "a"], env=os.environ | environment, capture_output=True, text=True).stdout

    def test_each_mutant_does_what_it_says(self):
        self.assertEqual(self.said(), "6 5 5 11")
        self.assertEqual(self.said(MOLEN_MUTANT="100000"), "6 5 5 11")
        wanted = {("comparison", "x < y", "x <= y"): "6 27 5 5", ("comparison", "y > 2", "y >= 2"): "6 5 5 11", ("condition", "x < y && y > 2", "x < y || y > 2"): "6 27 5 5",
                  ("branch dropped", "x < y && y > 2", "false"): "5 5 5 16", ("swapped arguments", "low(x, y)", "low(y, x)"): "39 5 5 11", ("operator", "x + y", "x - y"): "6 5 5 3",
                  ("operand dropped", "x + y", "x"): "6 5 5 7", ("call dropped", "note(x + y)", "nothing"): "6 5 5 0", ("assignment dropped", "seen += by", "nothing"): "6 5 5 0",
                  ("operator", "seen += by", "seen -= by"): "6 5 5 -11", ("constant", "5", "5 + 1"): "6 6 6 11", ("constant", "2", "2 + 1"): "6 5 5 11",
                  ("operator", "a * 10 - b", "a * 10 + b"): "14 5 5 11", ("operand dropped", "a * 10 - b", "a * 10"): "10 5 5 11", ("constant", "10", "10 + 1"): "7 5 5 11"}
        outcomes = {(m["kind"], m["old"], m["new"]): self.said(MOLEN_MUTANT=str(m["number"])) for m in self.found}
        self.assertEqual({k: outcomes.get(k) for k in wanted}, wanted)
        self.assertEqual([m["key"] for m in self.found if "comment" in m["key"] or "MAIN" in m["key"]], [])

    def test_lines_stay_where_they_are(self):
        body = self.file.read_text().split("#line 1\n")[1]
        self.assertEqual(body.count("\n"), SOURCE.count("\n"))
        self.assertTrue(body.splitlines()[10].startswith("}"))

    def test_code_of_a_header_within_braces_is_left_alone(self):
        """Its offsets are those of the header, here beyond the end of the source."""
        (self.folder / "steps.h").write_text("//" + "x" * 4000 + "\nstatic int next;\nstatic void step(int by) { next += by; }\n")
        file = self.folder / "src/base/b.cpp"
        file.write_text(f'extern "C" {{\n#include "{self.folder}/steps.h"\n}}\nvoid work(int n) {{\n  step(n);\n}}\n')
        found = mutants_find.candidates_of(self.folder, "src/base/b.cpp", f"g++ -std=c++20 -o b.o -c {file}")
        self.assertEqual({(m["kind"], m["old"]) for m in found}, {("call dropped", "step(n)"), ("value dropped", "n")})

    def test_what_a_run_reaches_is_told(self):
        marks = self.folder / "marks"
        marks.write_bytes(bytes(4096))
        self.said(MOLEN_MUTANTS_REACHED=str(marks))
        reached = marks.read_bytes()
        self.assertEqual({m["number"] for m in self.found if not reached[m["number"]]}, set())
        self.assertEqual(sum(reached), len(self.found))

    def test_samples_are_seeded_and_spread(self):
        many = [dict(m, file=f"src/{module}/a.cpp", key=f"{module} {i} {m['key']}") for module, times in (("base", 1), ("data", 9), ("sim", 4)) for i in range(times) for m in self.found]
        first, again, other = (mutate.sample(many, 30, seed) for seed in (1, 1, 2))
        self.assertEqual([m["key"] for m in first], [m["key"] for m in again])
        self.assertNotEqual([m["key"] for m in first], [m["key"] for m in other])
        counts = {module: sum(m["file"].split("/")[1] == module for m in first) for module in ("base", "data", "sim")}
        self.assertEqual(counts, {"base": 5, "data": 15, "sim": 10})
        self.assertGreaterEqual(len({m["kind"] for m in first}), 6)


class Tests(unittest.TestCase):
    def test_every_script_is_there(self):
        for script in mutants_run.SCRIPTS:
            self.assertTrue(mutants_run.script_of(ROOT, script).is_file(), script)

    def test_every_row_of_a_table_is_run(self):
        for table in mutants_run.TABLES:
            rows = set()
            for file in (ROOT / "tests/end_to_end").glob(f"{table.split('_')[-1]}_*.py"):
                rows |= {re.search(r"^def (\w+)", body, re.M)[1] for body in re.split(r"^@row\(", file.read_text(), flags=re.M)[1:]}
            run = mutants_run.tests_of(ROOT, table)
            self.assertEqual({name for together in run for name in together.split(":")}, rows)
            self.assertLessEqual(max(together.count(":") for together in run), mutants_run.TOGETHER[table] - 1)


class Order(unittest.TestCase):
    def test_rows_that_a_source_is_named_for_come_first(self):
        flags, other = "end_to_end_flags", ("end_to_end_stops", "all")
        tests = {(flags, "model:verify"): 5.0, (flags, "tokens:caps_of_a_site"): 50.0, other: 1.0}
        for file, first in (("src/apps/energy_manage.cpp", "tokens:caps_of_a_site"), ("src/apps/verify.cpp", "model:verify")):
            self.assertEqual(mutants_run.order(ROOT, tests, file, tests)[0], [(flags, first)])
        unit = ("data", "A.One")
        self.assertEqual(mutants_run.order(ROOT, [*tests, unit], "src/data/verify.cpp", tests | {unit: 9.0})[0], [unit])


class Runs(unittest.TestCase):
    """Runs over made-up tests and mutants. `asked` lists what a run has measured or tried, in order."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="molen_mutants_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.asked, self.ends_after = [], None
        kept = {name: getattr(mutants_run, name) for name in ("tests_of", "measured", "outcome_of")}
        self.addCleanup(lambda: [setattr(mutants_run, name, value) for name, value in kept.items()])
        mutants_run.tests_of = lambda tree, module: ["A.One", "A.Two", "A.Broken"]
        mutants_run.measured = lambda tree, test, count: self.ask(test[1], None if test[1] == "A.Broken" else (0.5, {0} if test[1] == "A.One" else {0, 1}))
        mutants_run.outcome_of = lambda tree, m, tests, seconds, budget: self.ask(m["number"], "caught" if tests else "not reached")

    def ask(self, what, answer):
        if self.ends_after is not None and len(self.asked) >= self.ends_after:
            raise KeyboardInterrupt
        self.asked.append(what)
        return answer

    def run_once(self, identity="same", mutants=3, ends_after=None, **measured):
        self.asked, self.ends_after = [], ends_after
        self.said = io.StringIO()
        with contextlib.redirect_stdout(self.said):
            self.progress = mutants_progress.Progress(self.folder / "build/progress.jsonl", identity, **measured)
            return mutants_run.run(self.folder, [{"number": n} for n in range(mutants)], ["base"], 1, 30, self.progress)

    def test_goes_on_where_it_was_ended(self):
        wanted = {0: "caught", 1: "caught", 2: "not reached"}
        self.assertEqual(self.run_once(), wanted)
        whole = self.asked
        self.assertEqual(whole, ["A.One", "A.Two", "A.Broken", 0, 1, 2])
        for ends in range(len(whole)):
            (self.folder / "build/progress.jsonl").unlink()
            self.assertRaises(KeyboardInterrupt, self.run_once, ends_after=ends)
            with open(self.folder / "build/progress.jsonl", "a") as file:
                file.write('{"mutant": 2, "outc')  # cut off while it wrote
            self.assertEqual(self.run_once(), wanted)
            self.assertEqual(self.asked, [what for what in whole if what == "A.Broken" or what not in whole[:ends]])
            self.assertIn(f"goes on from progress.jsonl: {min(ends, 2)} tests are measured, and {max(0, ends - 3)} mutants", self.said.getvalue())

    def test_other_sources_begin_anew(self):
        self.run_once()
        self.run_once(identity="other")
        self.assertEqual(len(self.asked), 6)
        self.assertNotIn("goes on", self.said.getvalue())

    def test_a_run_that_has_ended_is_not_taken_for_the_next(self):
        self.run_once()
        self.progress.finish()
        self.run_once()
        self.assertEqual(len(self.asked), 6)

    def test_measured_tests_serve_a_run_that_asks_for_them(self):
        self.run_once(measurement="tests")
        self.progress.finish()
        wanted = {0: "caught", 1: "caught", 2: "not reached"}
        self.assertEqual(self.run_once(identity="another budget", measurement="tests", reuse=True), wanted)
        self.assertEqual(self.asked, ["A.Broken", 0, 1, 2])
        self.assertIn("2 tests are measured already", self.said.getvalue())
        self.progress.finish()
        self.run_once(identity="another budget", measurement="other tests", reuse=True)
        self.assertEqual(len(self.asked), 6)

    def test_identity_is_of_sources_tests_and_mutants(self):
        subprocess.run(["git", "init", "-q", self.folder], check=True)
        (self.folder / "src").mkdir()
        (self.folder / "tests").mkdir()

        def identity(source="a", reasons="b", key="k", tests=("base",), budget=30):
            (self.folder / "src/a.cpp").write_text(source)
            (self.folder / "tests/mutants.json").write_text(reasons)
            subprocess.run(["git", "-C", self.folder, "add", "-A"], check=True)
            return mutants_progress.identity_of(self.folder, [{"number": 0, "key": key}], tests, budget)

        self.assertEqual(identity(), identity(reasons="c"))
        self.assertEqual(len({identity(), identity(source="c"), identity(key="l"), identity(tests=("data",)), identity(budget=20)}), 5)

    def test_every_module_is_sampled(self):
        with_tests = {str(test.relative_to(mutate.ROOT / "src")).split("/")[0] for test in (mutate.ROOT / "src").rglob("*_test.cpp")}
        self.assertEqual(with_tests - set(mutate.TORCH_FREE + mutate.TORCH + mutate.PROGRAM), set(), "modules that mutate.py does not name")


if __name__ == "__main__":
    unittest.main()
