#!/usr/bin/env python3
"""The gates themselves: each is shown something that it must refuse, and the same without the fault.

usage: gates.py
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))

import check_suites  # noqa: E402


def called(*command, **options):
    r = subprocess.run([str(x) for x in command], capture_output=True, text=True, **options)
    return r.returncode, r.stdout + r.stderr


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="molen_gates_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, **files):
        for name, text in files.items():
            self.put(name, text)

    def put(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def git(self, *args):
        who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
        return subprocess.run(["git", "-C", self.folder, *args], env=os.environ | who, capture_output=True, text=True, check=True).stdout.strip()


class Layers(Folder):
    def layers(self, line):
        self.put("src/train/x.h", "")
        self.put("src/model/a.cpp", f"{line}\n")
        return called(sys.executable, TOOLS / "check_layers.py", self.folder)

    def test_upward_includes_in_every_spelling(self):
        for line in ('#include "train/x.h"', "#include <train/x.h>", '#include "../train/x.h"', '#include "../model/../train/x.h"', "#  include  <../src/train/x.h>"):
            code, said = self.layers(line)
            self.assertEqual(code, 1, line)
            self.assertRegex(said, r"model \(level \d+\) includes train \(level \d+\)", line)

    def test_downward_and_system_includes(self):
        for line in ('#include "base/error.h"', "#include <optional>", '#include "../base/error.h"', "#include <store>"):
            self.assertEqual(self.layers(line)[0], 0, line)

    def test_between_what_runs_ranks(self):
        for name in ("launch", "measure", "infer", "prove", "train"):
            self.put(f"src/{name}/x.h", "")
        for below, above in (("prove", "train"), ("infer", "train"), ("measure", "train"), ("prove", "infer"), ("prove", "measure"), ("launch", "prove"), ("plan", "launch")):
            self.put(f"src/{below}/a.cpp", f'#include "{above}/x.h"\n')
            self.assertIn(f"src/{below}/a.cpp:1: {below} (level ", self.layers("")[1])
            self.put(f"src/{below}/a.cpp", '#include "base/error.h"\n')
        self.put("src/train/a.cpp", '#include "prove/x.h"\n#include "measure/x.h"\n')
        self.assertEqual(self.layers("")[0], 0)

    def test_vendor_and_aten(self):
        self.assertIn("belongs to src/comm/mpi", self.layers("#include <mpi.h>")[1])
        self.put("src/base/b.cpp", "#include <ATen/ATen.h>\n")
        self.assertIn("ATen belongs to", self.layers("")[1])

    def test_the_command_line_is_free_of_libtorch(self):
        for line, code in (('#include "train/trainer.h"', 1), ('#include "math/gemm.h"', 1), ('#include "../launch/world.h"', 1), ('#include "train/options.h"', 0), ('#include "plan/resolve.h"', 0)):
            self.put("src/apps/train.cpp", f"{line}\n")
            got, said = self.layers("")
            self.assertEqual(got, code, line)
            self.assertEqual("belongs to src/apps/compute/" in said, bool(code), said)
            self.put("src/apps/train.cpp", "")
            self.put("src/apps/compute/train.cpp", f"{line}\n")
            self.assertEqual(self.layers("")[0], 0, line)
            self.put("src/apps/compute/train.cpp", "")

    def test_who_reads_no_setting(self):
        for folder in ("exec", "program/verify", "program/types", "program/values", "program/parts"):
            file = f"src/{folder}/c.cpp"
            for line in ("int ranks = program.setting.ranks();", "int f(const program::Setting& s);", "int n = p->setting.zero;"):
                self.put(file, f"{line}\n")
                code, said = self.layers("")
                self.assertEqual(code, 1, line)
                self.assertIn(f"{file}:1: {folder} reads the setting", said)
            for header in ("program/values/of_setting.h", "program/build/build.h", "program/provenance/provenance.h"):
                self.put(file, f'#include "{header}"\n')
                self.assertIn(f"{file}:1: {folder} includes {header}, which knows the setting", self.layers("")[1])
            self.put(file, "int resetting = 1;  // a setting\n")
            self.assertEqual(self.layers("")[0], 0)
        for folder, code in (("types", 1), ("verify", 1), ("values", 0)):
            self.put(f"src/program/{folder}/c.cpp", '#include "program/values/signature.h"\n')
            self.assertEqual(self.layers("")[0], code, folder)
            self.put(f"src/program/{folder}/c.cpp", "")
        for file in ("program/values/of_setting.cpp", "program/build/c.cpp", "program/verify/c_test.cpp"):
            self.put(f"src/{file}", '#include "program/values/of_setting.h"\nint f(const Setting& s);\n')
        self.assertEqual(self.layers("")[0], 0)


class Writers(Folder):
    def writers(self, line, name="src/store/a.cpp"):
        self.put(name, f"{line}\n")
        return called(sys.executable, TOOLS / "check_writers.py", self.folder)

    def test_what_goes_past_the_door(self):
        for line in ("int f = ::open(path, O_RDONLY);", "  ::fsync(f);", "if (fsync(f)) return;", "std::ofstream out(path);", "ofstream out;",
                     "std::FILE* f = fopen(path, \"w\");", "fs::rename(a, b);", "std::filesystem::remove_all(a);", "x = ::mmap(0, 1);",
                     "std::fstream f;", "fs::create_directories(a, error);", "::unlink(x.c_str());"):
            code, said = self.writers(line)
            self.assertEqual(code, 1, line)
            self.assertIn("src/store/a.cpp:1: ", said, line)

    def test_what_does_not(self):
        for line in ("File::open(path);", "file_system().rename(a, b);", "rename(step, \"fwd\");", "// ::open(path) would do", "file.write(text);",
                     "fs::exists(a);", "std::ostream& out;", "fail(\"fsync(f)\");", "#include <fstream>", "FileSystem::open(a, 0, 0);"):
            self.assertEqual(self.writers(line), (0, "writers: ok\n"), line)
        self.assertEqual(self.writers("::open(path);", "src/store/a_test.cpp"), (0, "writers: ok\n"))

    def test_a_reason_without_its_line(self):
        self.assertIn("which has none", self.writers("int a;", "src/exec/arena.cpp")[1])


class Helpers(Folder):
    def helpers(self, second, first="int twice(int a) {\n  return 2 * a;\n}\n", name="b.cpp", lists="molen_module(data)\n"):
        self.put("src/data/CMakeLists.txt", lists)
        for file, text in (("a.cpp", first), (name, second)):
            self.put(f"src/data/{file}", f"namespace molen::data {{\nnamespace {{\n\n{text}\n}}  // namespace\n\nint public_{file[0]}();\n\n}}  // namespace molen::data\n")
        return called(sys.executable, TOOLS / "check_helpers.py", self.folder)

    def test_two_files_with_a_helper_of_one_name(self):
        for second in ("double twice(double a) {\n  return a + a;\n}\n", "template <class T>\nstd::vector<T> twice(const std::vector<T>& a,\n                     int b) {\n}\n", "void other() {\n}\n\nconstexpr const char* twice() { return \"\"; }\n"):
            code, said = self.helpers(second)
            self.assertEqual(code, 1, second)
            self.assertIn("src/data/a.cpp: twice has the name of a helper in src/data/b.cpp", said)

    def test_two_files_with_a_type_or_a_constant_of_one_name(self):
        for first in ("struct Row {\n};\n", "class Row final : public Base {\n};\n", "enum class Row : int { kA };\n", "using Row = std::vector<int>;\n", "template <class T>\nstruct Row {\n};\n",
                      "template <class T> using Row = std::vector<T>;\n", "typedef int Row;\n", "Row Row(int a) {\n}\n"):
            for second in ("struct Row {\n  int a;\n};\n", "using Row = int;\n"):
                code, said = self.helpers(second, first)
                self.assertEqual(code, 1, (first, second))
                self.assertIn("src/data/a.cpp: Row has the name of a helper in src/data/b.cpp", said)
        for first in ("constexpr int kMost = 3;\n", "const std::string kMost{\"a\"};\n", "constexpr int kLeast = 2, kMost = kLeast + 1;\n", "static constexpr double kMost[2][2] = {{1, 2},\n    {3, 4}};\n",
                      "const Layout kLeast{2, 1},\n    kMost{2, 2};  // of two\n", "const std::map<int, std::vector<int>> kMost = {\n    {1, {2}},\n};\n"):
            code, said = self.helpers("constexpr double kMost = 1.0;\n", first)
            self.assertEqual(code, 1, first)
            self.assertIn("src/data/a.cpp: kMost has the name of a helper in src/data/b.cpp", said)
        self.put("src/data/c.cpp", "namespace molen::data {\nnamespace {\n\nusing Row = long;\n\n}  // namespace\n}  // namespace molen::data\n")
        self.assertEqual(self.helpers("using Row = int;\n", "using Row = int;\n")[0], 1, "one of three differs")

    def test_what_is_no_such_pair(self):
        for second in ("int thrice(int a) {\n  return twice(a) + a;\n}\n", "struct S {\n  int twice(int a) const;\n};\n"):
            self.assertEqual(self.helpers(second), (0, "helpers: ok\n"), second)
        for first, second in (("using Row = std::vector<int>;\n", "using Row = std::vector<int>;\n"), ("constexpr int kMost = 3;\n", "constexpr int kLeast = Other::kMost, kNone = kMost == 3;\n"),
                              ("constexpr int kMost = 3;\n", "int f() {\n  constexpr int kMost = 4;\n  return kMost;\n}\n"), ("struct Row {\n};\n", "struct Table {\n  struct Row {\n  };\n};\n")):
            self.assertEqual(self.helpers(second, first), (0, "helpers: ok\n"), (first, second))
        same = "double twice(double a) {\n  return a + a;\n}\n"
        self.assertEqual(self.helpers(same, name="b_test.cpp")[0], 0, "a module and its tests are joined apart")
        (self.folder / "src/data/b_test.cpp").unlink()
        self.assertEqual(self.helpers(same, lists="molen_module(data REPEATS_NAMES)\n")[0], 0)


class Headers(Folder):
    """A made-up ATen, which brings <string> as the real one does; the build precompiles <vector> beside it."""

    def headers(self, header, source='#include "math/a.h"\n', precompiled=True):
        self.put("torch/include/ATen/core/Tensor.h", "#pragma once\n#include <string>\nnamespace at { struct Tensor {}; }\n")
        self.put("torch/version.py", "1")
        self.put("src/math/a.h", header)
        self.put("src/math/a.cpp", source)
        self.put("build/release/pch.h", "#include <ATen/core/Tensor.h>\n#include <vector>\n")
        include = f"-include {self.folder}/build/release/pch.h" if precompiled else ""
        command = f"g++ -std=c++20 -I{self.folder}/src -idirafter{self.folder}/torch/include {include} -o a.o -c {self.folder}/src/math/a.cpp"
        self.put("build/release/compile_commands.json", json.dumps([{"file": str(self.folder / "src/math/a.cpp"), "command": command, "directory": str(self.folder)}]))
        return called(sys.executable, TOOLS / "check_headers.py", self.folder)

    def test_the_precompiled_header_hides_nothing(self):
        for header in ("#include <ATen/core/Tensor.h>\ninline std::vector<at::Tensor> f() { return {}; }\n", "inline at::Tensor f() { return {}; }\n", "#include <vector>\nstd::vector<at::Tensor> f();\n"):
            code, said = self.headers(header)
            self.assertEqual(code, 1, header)
            self.assertIn("math/a.h does not compile alone", said)

    def test_sound_headers(self):
        for header in ("#include <ATen/core/Tensor.h>\n#include <vector>\ninline std::vector<at::Tensor> f() { return {}; }\n", "#include <vector>\nstd::vector<int> f();\n"):
            self.assertEqual(self.headers(header), (0, "headers: 1 compile alone\n"), header)

    def test_what_the_build_has_shown_is_not_compiled_again(self):
        alone = "std::vector<int> f();\n"
        self.assertEqual(self.headers(alone, precompiled=False), (0, "headers: 1 compile alone\n"), "the build would have failed")
        for source in ('#include <vector>\n\n#include "math/a.h"\n', '// math/a.h\n#include "math/b.h"\n'):
            self.assertEqual(self.headers(alone, source, precompiled=False)[0], 1, source)

    def test_a_header_that_lost_an_include_is_compiled_again(self):
        self.headers("#include <vector>\nstd::vector<int> f();\n")
        self.assertEqual(self.headers("std::vector<int> f();\n")[0], 1)


class Suites(Folder):
    """Real runs of ctest on suites that are one line of shell each."""
    RULES = [{"suite": "stops", "test": "a full disk", "why": "needs a mount"}]

    def judge(self, least, rules=RULES, **suites):
        lines = ["cmake_minimum_required(VERSION 3.23)", "project(x NONE)", "enable_testing()"]
        for name, script in suites.items():
            self.put(f"{name}.sh", script)
            lines += [f"add_test(NAME {name} COMMAND sh {self.folder}/{name}.sh)", f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)"]
        self.put("CMakeLists.txt", "\n".join(lines))
        build = self.folder / "build"
        self.assertEqual(called("cmake", "-S", self.folder, "-B", build)[0], 0)
        called("ctest", "--test-dir", build, "--output-junit", "suites.xml")
        found = check_suites.suites_of((build / "Testing/Temporary/LastTest.log").read_text(), (build / "suites.xml").read_text())
        return check_suites.judge(found, least, rules)

    def test_all_there(self):
        self.assertEqual(self.judge({"base": 2, "stops": 30, "gates": 4, "mpi": None}, base="echo '[==========] 3 tests from 2 test suites ran. (1 ms total)'", mpi="", stops="echo 'stops: 31 checks passed'", gates="echo 'Ran 4 tests in 1 s'"), [])
        self.assertEqual(self.judge({"keys": 53, "torch": 2}, keys="echo 'keys: 53 rows measure the effect of 108 of 108'", torch="printf 'ok  a\\nok  b\\n'"), [])
        self.assertEqual(len(self.judge({"keys": 54, "torch": 3}, keys="echo 'keys: 53 rows measure the effect of 108 of 108'", torch="printf 'ok  a\\nok  b\\n'")), 2)

    def test_what_vanished(self):
        self.assertEqual(self.judge({"base": 2, "train": 1, "arch": 3, "mesh": 1}, base="echo '[==========] 2 tests from 2 test suites ran. (1 ms total)'", arch="echo '[==========] 2 tests from 1 test suite ran. (1 ms total)'", mesh=""),
                         ["the suite train did not run", "the suite arch ran 2 tests, where tests/suites.json has at least 3", "the suite mesh ran 0 tests, where tests/suites.json has at least 1"])

    def test_skips_are_named(self):
        gtest = "printf '[  SKIPPED ] A/Gemm.Forms/x (0 ms)\\n[==========] 1 test from 1 test suite ran. (1 ms total)\\n[  SKIPPED ] 1 test, listed below:\\n[  SKIPPED ] A/Gemm.Forms/x\\n'"
        self.assertEqual(self.judge({}, stops="echo 'SKIPPED a full disk: no mount'; exit 77", flight="echo 'SKIPPED MPI ranks: none'; exit 77", math=gtest, silent="exit 77"),
                         ["flight skipped MPI ranks, which tests/suites.json does not allow", "math skipped A/Gemm.Forms/x, which tests/suites.json does not allow", "the suite silent was skipped as a whole and does not say what"])
        self.assertEqual(self.judge({"math": 1}, math=gtest)[0], "the suite math ran 0 tests, where tests/suites.json has at least 1")
        self.assertEqual(self.judge({"math": 1}, rules=[{"suite": "math", "test": "A/Gemm.*", "why": "needs AMX"}], math=gtest), [])
        self.assertEqual(len(self.judge({"math": 1}, rules=[{"suite": "math", "test": "*", "why": "another run has them"}], math=gtest)), 1)


class CompileDatabase(Folder):
    def test_each_source_of_a_joined_file_has_its_command(self):
        joined = self.folder / "build/Unity/unity_0_cxx.cxx"
        sources = [str(self.folder / "src/base" / name) for name in ("a.cpp", "b.cpp")]
        alone = str(self.folder / "src/base/c.cpp")
        self.put("build/Unity/unity_0_cxx.cxx", "".join(f'#include "{s}"\n' for s in sources))
        self.put("build/compile_commands.json", json.dumps([{"file": str(f), "command": f"g++ -O1 -c {f}", "directory": "/"} for f in (joined, alone)]))
        said = subprocess.run([sys.executable, TOOLS / "compile_database.py", self.folder / "build"], capture_output=True, text=True, check=True).stdout
        self.assertEqual([(e["file"], e["command"]) for e in json.loads(said)], [(s, f"g++ -O1 -c {s}") for s in (*sources, alone)])

    def test_units_are_the_files_that_have_a_source(self):
        files = [self.put(f"build/release/{name}/Unity/unity_0_cxx.cxx", f'#include "{self.folder}/{source}"\n') for name, source in
                 (("a", "src/base/a.cpp"), ("a_test", "src/base/a_test.cpp"), ("tool", "tests/tool.cpp"))] + [self.folder / "src/base/b.cpp", self.folder / "src/base/b_test.cpp"]
        self.put("build/release/compile_commands.json", json.dumps([{"file": str(f), "command": f"g++ -c {f}", "directory": "/"} for f in files]))
        said = subprocess.run([sys.executable, TOOLS / "compile_database.py", "--units", self.folder / "build/release"], capture_output=True, text=True, check=True).stdout
        self.assertEqual([e["file"] for e in json.loads(said)], [str(files[0]), str(files[3])])

    def test_names_what_clang_can_read(self):
        self.put("build/CMakeFiles/x.dir/cmake_pch.hxx", f'/* generated */\n#pragma GCC system_header\n#include "{self.folder}/cmake/x.h"\n')
        source = str(self.folder / "src/a.cpp")
        command = f"g++ -O1 -fopenmp -Winvalid-pch -include {self.folder}/build/CMakeFiles/x.dir/cmake_pch.hxx -c {source}"
        self.put("build/compile_commands.json", json.dumps([{"file": source, "command": command, "directory": "/"}]))
        said = subprocess.run([sys.executable, TOOLS / "compile_database.py", self.folder / "build"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(said)[0]["command"], f"g++ -O1 -Winvalid-pch -include {self.folder}/cmake/x.h -c {source}")


class NightlyParts(unittest.TestCase):
    """The parts that `nightly.sh` runs by default, those that it knows, and those that its usage names are the same."""

    def test_each_part_that_runs_by_default_is_known_and_there(self):
        text = (ROOT / "tools/nightly.sh").read_text()
        default = re.search(r"parts=\(([a-z ]+)\)", text)[1].split()
        known = re.search(r"^    ([a-z| ]+)\) \"\$part\" ;;$", text, re.M)[1].split(" | ")
        self.assertGreater(len(default), 10)
        self.assertEqual(set(default) - set(known), set())
        self.assertEqual([part for part in known if not re.search(rf"^{part}\(\) \{{", text, re.M)], [])
        self.assertEqual(re.search(r"\[([a-z|]+) \.\.\.\]", text)[1].split("|"), known)


class Tidy(Folder):
    """`nightly.sh tidy` on a tree of one file, which is compiled alone or included by another."""

    def tidy(self, source, joined=False, checks=""):
        for name in ("tools/nightly.sh", "tools/tidy.py", "tools/compile_database.py", "tools/results.py", ".clang-tidy", "docs/results/metrics.json"):
            self.put(name, (ROOT / name).read_text())
            (self.folder / name).chmod(0o755)
        self.put(".clang-tidy", (ROOT / ".clang-tidy").read_text() + checks)
        self.put("docs/results/records.jsonl", "")
        self.put("src/base/a.cpp", source)
        compiled = self.put("build/release/Unity/unity_0_cxx.cxx", f'#include "{self.folder}/src/base/a.cpp"\n') if joined else self.folder / "src/base/a.cpp"
        self.put("build/release/compile_commands.json", json.dumps([{"file": str(compiled), "command": f"g++ -std=c++20 -c {compiled}", "directory": str(self.folder)}]))
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "a", "--allow-empty")
        return called("bash", self.folder / "tools/nightly.sh", "tidy", cwd=self.folder)

    def test_without_a_finding_it_passes(self):
        code, said = self.tidy("int f(int a) { return a; }\n")
        self.assertEqual(code, 0, said)
        self.assertIn("tidy: 1 ", said)
        record = json.loads((self.folder / "docs/results/records.jsonl").read_text())
        self.assertEqual((record["metric"], record["value"], record["commit"]), ("tidy", 1, self.git("rev-parse", "--short", "HEAD")))

    def test_with_a_finding_it_fails(self):
        code, said = self.tidy("int f(int a) { return a == a; }\n")
        self.assertEqual(code, 1, said)
        self.assertIn("[misc-redundant-expression", said)

    def test_what_is_included_is_read_and_analysed(self):
        code, said = self.tidy("int f(int a) { return a == a; }\nint g(int* p) { if (p) return 1; return *p; }\n", joined=True)
        self.assertEqual(code, 1, said)
        self.assertIn("[misc-redundant-expression", said)
        self.assertIn("[clang-analyzer-core.NullDereference", said)

    def test_a_source_outside_of_the_build_is_read(self):
        self.put("src/base/b.cpp", "int f(int a) { return a == a; }\n")
        code, said = self.tidy("int g(int a) { return a; }\n")
        self.assertEqual(code, 1, said)
        self.assertIn("[misc-redundant-expression", said)

    def test_what_has_not_changed_is_read_once(self):
        source = '#include "a.h"\nint g(int a) { return f(a); }\n'
        self.put("src/base/a.h", "inline int f(int a) { return a; }\n")
        for joined in (False, True):
            for read in (1, 0):
                code, said = self.tidy(source, joined)
                self.assertEqual(code, 0, said)
                self.assertIn(f"({read} of 1 files of the compiler were read now", said)
        for _ in range(2):  # a finding is not remembered
            self.put("src/base/a.h", "inline int f(int a) { return a == a; }\n")
            code, said = self.tidy(source, joined)
            self.assertEqual(code, 1, said)
            self.assertIn("[misc-redundant-expression", said)
        self.put("src/base/a.h", "inline int f(int a) { return a; }\n")
        self.assertIn("(0 of 1 files", self.tidy(source, joined)[1])
        self.assertIn("(1 of 1 files", self.tidy(source, joined, checks="# another\n")[1])

    def test_a_file_that_cannot_be_read_is_a_finding(self):
        code, said = self.tidy('#include "nowhere.h"\n')
        self.assertEqual(code, 1, said)
        self.assertIn("[clang-diagnostic-error]", said)


class Results(Folder):
    METRICS = {"speed": {"title": "a speed", "section": "S", "unit": "x", "better": "higher", "peer": "another", "covers": ["src"], "stale_after": 1,
                         "bounds": {"any": {"at_least": 1.5, "spread": None, "why": "w"}, "Some/1": {"at_least": 2, "spread": [2.1, 2.3], "why": "w"}}},
               "error": {"title": "an error", "section": "S", "unit": "%", "better": "lower", "peer": None, "covers": ["src"], "stale_after": 1, "bounds": {"any": {"at_most": 10, "spread": None, "why": "w"}}}}

    def setUp(self):
        super().setUp()
        self.put("docs/results/metrics.json", json.dumps(self.METRICS))
        self.put("src/a", "1")
        self.git("init", "-q")
        self.commit()

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "a", "--allow-empty")
        return self.git("rev-parse", "--short", "HEAD")

    def records(self, *rows):
        base = {"metric": "speed", "value": 2.0, "spread": [1.9, 2.1], "unit": "x", "machine": "m", "make": "Some/1", "commit": self.git("rev-parse", "--short", "HEAD"), "date": "2026-01-01", "command": "c", "note": None}
        self.put("docs/results/records.jsonl", "".join(json.dumps(base | r) + "\n" for r in rows))

    def tool(self, name, *args):
        return called(sys.executable, TOOLS / name, *args, env=os.environ | {"MOLEN_ROOT": str(self.folder)})

    def test_a_page_that_is_not_what_the_records_say(self):
        self.records({}, {"value": 2.1}, {"value": 2.05})
        self.assertIn("tools/results.py page writes it", self.tool("results.py", "check")[1])
        self.assertEqual(self.tool("results.py", "page")[0], 0)
        self.assertEqual(self.tool("results.py", "check"), (0, "results: ok\n"))
        page = (self.folder / "docs/RESULTS.md").read_text()
        self.assertIn("| a speed | 2.05x [1.9, 2.1]: m;", page)
        self.assertIn("| 2.1x [1.9, 2.1] (m;", page)
        self.records({}, {"value": 2.1})
        self.assertEqual(self.tool("results.py", "check")[0], 1)

    def test_a_record_of_another_machine(self):
        self.records()
        add = ("results.py", "add", "speed", "2.5", "--command", "c")
        self.assertEqual(self.tool(*add, "--machine", "a GPU, 1 device", "--make", "a GPU")[0], 0)
        record = json.loads((self.folder / "docs/results/records.jsonl").read_text())
        self.assertEqual((record["machine"], record["make"], record["value"]), ("a GPU, 1 device", "a GPU", 2.5))
        status, said = self.tool(*add, "--machine", "a GPU")
        self.assertNotEqual(status, 0)
        self.assertIn("--machine and --make go together", said)

    def test_rows_of_a_table_stand_on_the_page(self):
        self.records({"rows": {"old": [1, 1, 1]}}, {"rows": {"molen": [0.5, 0.25, 0.75], "PyTorch": [1.5, 1.25, 1.75]}})
        self.assertEqual(self.tool("results.py", "page")[0], 0)
        self.assertEqual(self.tool("results.py", "check"), (0, "results: ok\n"))
        page = (self.folder / "docs/RESULTS.md").read_text()
        self.assertIn("| molen | 0.500 | 0.250 | 0.750 |\n| PyTorch | 1.500 | 1.250 | 1.750 |\n", page)
        self.assertNotIn("| old |", page)
        for rows in ({"molen": [0.5, 0.6, 0.75]}, {"molen": [0.5, 0.25, 0.4]}, {"molen": [0.5]}):
            self.records({"rows": rows})
            self.assertIn("each of its rows has a median, the lowest and the highest", self.tool("results.py", "check")[1])

    def test_readme_quotes_the_latest_records(self):
        self.put("README.md", "It is <!-- result speed -->9x<!-- /result --> as fast, with <!-- result error --><!-- /result --> of error.\n")
        self.records({}, {"value": 2.05})
        self.assertEqual(self.tool("results.py", "page")[0], 0)
        readme = self.folder / "README.md"
        self.assertEqual(readme.read_text(), "It is <!-- result speed -->2.05x<!-- /result --> as fast, with <!-- result error -->not measured yet<!-- /result --> of error.\n")
        self.assertEqual(self.tool("results.py", "check"), (0, "results: ok\n"))
        readme.write_text(readme.read_text().replace("2.05x", "3x"))
        self.assertIn("README.md quotes a figure that is not the latest record's", self.tool("results.py", "check")[1])
        readme.write_text(readme.read_text().replace("result speed", "result haste"))
        self.assertIn("quotes haste, which is no metric", self.tool("results.py", "check")[1])

    def test_records_that_lack_something(self):
        for row, says in (({"metric": "none"}, "no metric none"), ({"unit": "s"}, "in s, where"), ({"value": 3.0}, "no number within its spread"), ({"more": 1}, "a record has")):
            self.records(row)
            code, said = self.tool("results.py", "check")
            self.assertEqual(code, 1, row)
            self.assertIn(says, said)

    def test_bounds_go_by_make_and_nan_misses_them(self):
        code = ("import results, sys; assert results.missed('speed', 1.9, 'Some/1') and not results.missed('speed', 2, 'Some/1') and not results.missed('speed', 1.5, 'Other/2');"
                "assert results.missed('speed', 1.49, 'Other/2') and results.missed('error', 10.1, 'x') and not results.missed('error', 10, 'x') and results.missed('error', float('nan'), 'x');"
                "sys.exit(0 if not results.report([('error', 11, None), ('speed', 3, None, {'a': [1, 1, 2]})], 'c', True) else 9)")
        self.put("docs/results/records.jsonl", "")
        code, said = called(sys.executable, "-c", code, env=os.environ | {"MOLEN_ROOT": str(self.folder), "PYTHONPATH": str(TOOLS)})
        self.assertEqual((code, said), (0, "missed: error is 11, above its bound of 10 (w)\n"))
        written = [json.loads(x) for x in (self.folder / "docs/results/records.jsonl").read_text().splitlines()]
        self.assertEqual([(r["value"], r.get("rows")) for r in written], [(11, None), (3, {"a": [1, 1, 2]})])
        self.assertEqual(self.tool("results.py", "judge", "error", "11")[0], 1)
        self.assertEqual(self.tool("results.py", "judge", "error", "9.5")[0], 0)

    def test_stale_records(self):
        self.records({})
        self.assertEqual(self.tool("stale_records.py", "--warn")[0], 0)
        code, said = self.tool("stale_records.py")
        self.assertEqual(code, 1)
        self.assertIn("not measured yet: error\n", said)
        self.put("docs/results/metrics.json", json.dumps({"speed": self.METRICS["speed"]}))
        self.assertEqual(self.tool("stale_records.py")[0], 0)
        self.put("src/a", "2")
        self.commit()
        self.assertEqual(self.tool("stale_records.py"), (0, "records: 1 metrics, 1 older than the code they cover, 0 too old; 0 not measured yet\n"))
        self.put("src/a", "3")
        self.commit()
        code, said = self.tool("stale_records.py")
        self.assertEqual(code, 1)
        self.assertIn("2 commits touch src since", said)
        code, said = self.tool("stale_records.py", "--warn")
        self.assertEqual(code, 0)
        self.assertIn("2 commits touch src since", said)
        self.records({"commit": "0123456"})
        code, said = self.tool("stale_records.py", "--warn")
        self.assertEqual(code, 1)
        self.assertIn("is not in the history", said)
        self.put(".git/HEAD", "broken")
        self.assertEqual(self.tool("stale_records.py")[0], 1)


if __name__ == "__main__":
    unittest.main()
