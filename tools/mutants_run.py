"""Runs the tests that reach each mutant, until one fails."""
import ast
import concurrent.futures
import functools
import itertools
import os
import pathlib
import re
import resource
import subprocess
import tempfile
import time

MEMORY = 6 << 30  # a mutant that asks for more is caught


def limited():
    """Limits the memory of the child process only. Libtorch maps more than it uses."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


MPIRUN = ["mpirun", "-n", "3", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


# The verbs and the trainer's loop have no unit tests: scripts that run the program meet their mutants. Each row of a table can run alone.
TABLES = ["end_to_end_flags", "end_to_end_keys"]
SCRIPTS = ["end_to_end_command_line", *TABLES, *(f"end_to_end_{name}" for name in ("programs", "traffic", "newcomer", "stops", "owners", "histories", "precision", "flight", "run"))]
SCRIPTS_MAY_COST = 10  # times the budget of unit tests
# Loading libtorch, and what a table's rows need before the first, take longer than most tests: so many run and are measured as one.
TOGETHER = {"math": 12, "optim": 12, "model": 12, "exec": 12, "launch": 12, "measure": 12, "infer": 12, "prove": 12, "train": 12} | {table: 8 for table in TABLES}
PASSED = (0, 77)  # a script that could not make one of its checks here made the others


def launched(module):
    """A whole program under mpirun, which is one test."""
    return module.endswith("_suite")


def target_of(module):
    return "molen" if module in SCRIPTS else module if launched(module) else f"{module}_test"


def script_of(tree, module):
    return tree / f"tests/end_to_end/{module.removeprefix('end_to_end_')}.py"


def program_of(tree, module):
    """With what stands before it."""
    if module in SCRIPTS:
        return [tree / ".venv/bin/python", script_of(tree, module), tree / "build/release/src/apps/molen"]
    folder = tree / "build/release/src" / module.split("_")[0]
    return [*(MPIRUN if launched(module) else []), folder / target_of(module)]


def call(tree, module, filters, seconds, environment):
    """Exit status of the tests, None where they did not end in time."""
    with tempfile.TemporaryDirectory(prefix="molen_mutant_", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o1777)  # some tests act as other users
        words, own = program_of(tree, module), {}
        if module in SCRIPTS:
            own = {"TMPDIR": folder, "MOLEN_ROWS": f" ({'|'.join(':'.join(filters).split(':'))})$", "MOLEN_ROWS_UNTIL_ONE_FAILS": "1"}
        else:
            flags = pathlib.Path(folder) / "flags"
            flags.write_text(f"--gtest_filter={':'.join(filters)}\n--gtest_fail_fast\n--gtest_brief=1\n")
            words.append(f"--gtest_flagfile={flags}")
        job = subprocess.Popen(words, cwd=tree, env=os.environ | MPI | own | environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=limited, start_new_session=True)
        try:
            status = job.wait(timeout=seconds)
            return 0 if module in SCRIPTS and status in PASSED else status
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(job.pid, 9)
            except ProcessLookupError:
                pass
            job.wait()


@functools.cache
def rows_of(tree, module):
    """{function of a row of a table: the words of its name and of what it sets}"""
    files = sorted(script_of(tree, module).parent.glob(f"{module.split('_')[-1]}_*.py"))
    found = {}
    for function in (node for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)):
        own = [d for d in function.decorator_list if isinstance(d, ast.Call) and d.func.id == "row"]
        texts = [function.name] + [a.value for d in own for a in d.args if isinstance(a, ast.Constant)]
        if own:
            found.setdefault(function.name, set()).update(word for text in texts for word in re.findall("[a-z]+", text))
    return found


def names_of(tree, module):
    if module in TABLES:
        return list(rows_of(tree, module))
    if launched(module) or module in SCRIPTS:
        return ["all"]
    said = subprocess.run([*program_of(tree, module), "--gtest_list_tests"], cwd=tree, capture_output=True, text=True, check=True).stdout
    names, suite = [], ""
    for line in said.splitlines():
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        else:
            suite = line.split("#")[0].strip()
    return [n for n in names if "DISABLED_" not in n]


def tests_of(tree, module):
    """A set of tests that run together: one test, or several of a suite as a filter names them."""
    most = TOGETHER.get(module, 1)
    suites = (list(own) for _, own in itertools.groupby(names_of(tree, module), key=lambda name: name.split(".")[0] if module not in TABLES else ""))
    return [":".join(own[i:i + most]) for own in suites for i in range(0, len(own), most)]


def measured(tree, test, count):
    """How long a test takes, and which mutants it reaches; None where it fails without any."""
    module, name = test
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(max(4096, count))
        start = time.monotonic()
        status = call(tree, module, [name], 900, {"MOLEN_MUTANTS_REACHED": file.name})
        seconds = time.monotonic() - start
        marks = pathlib.Path(file.name).read_bytes()
    return (seconds, {i for i in range(count) if marks[i]}) if status == 0 else None


def shared_words(tree, file, test):
    """How many words a source's name shares with the row of a table that shares most: every command reaches what declares the commands, but the
    rows of `energy manage` judge energy_manage.cpp. 0 for other tests."""
    module, name = test
    own = set(pathlib.Path(file).stem.split("_"))
    return max(len(own & rows_of(tree, module)[row]) for row in name.split(":")) if module in TABLES else 0


def order(tree, tests, file, seconds):
    """Tests of the mutant's own module first, then rows of tables that its file is named for, then quick ones before slow ones; those of one program and at
    most a fifth of a second each run together."""
    groups, module = [], file.split("/")[1]
    for program in sorted({t[0] for t in tests}, key=lambda m: (m != module, sum(seconds[t] for t in tests if t[0] == m))):
        own = sorted((t for t in tests if t[0] == program), key=lambda t: seconds[t])
        quick = [t for t in own if seconds[t] <= 0.2]
        groups += ([quick] if quick else []) + [[t] for t in own if seconds[t] > 0.2]
    return sorted(groups, key=lambda group: (group[0][0] != module, -max(shared_words(tree, file, t) for t in group)))


def outcome_of(tree, mutant, tests, seconds, budget):
    if not tests:
        return "not reached"
    spent, left_out = {True: 0.0, False: 0.0}, False
    for group in order(tree, tests, mutant["file"], seconds):
        script, cost = group[0][0] in SCRIPTS, sum(seconds[t] for t in group)
        if spent[script] and spent[script] + cost > budget * (SCRIPTS_MAY_COST if script else 1):
            left_out = True
            continue
        spent[script] += cost
        status = call(tree, group[0][0], [t[1] for t in group], 10 + (3 if script else 10) * cost, {"MOLEN_MUTANT": str(mutant["number"])})
        if status is None:
            return "caught: a test does not end"
        if status != 0:
            return "caught"
    return f"survives {sum(spent.values()):.0f} s of the tests that reach it" if left_out else "survives"


def run(tree, mutants, modules, jobs, budget, progress):
    """Returns the outcome of each mutant by its number. Whatever `progress` (mutants_progress.py) has already is not run again."""
    tests = [(m, n) for m in modules for n in tests_of(tree, m)]
    count = max((m["number"] for m in mutants), default=0) + 1
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda t: progress.measure(t, measured(tree, t, count)), [t for t in tests if t not in progress.measured]))
    results = {t: progress.measured[t] for t in tests}
    broken = [".".join(t) for t, r in results.items() if r is None]
    if broken:
        print(f"mutate: {len(broken)} tests fail without a mutant and are left out: {', '.join(broken[:10])}", flush=True)
    seconds = {t: r[0] for t, r in results.items() if r}
    reach = {m["number"]: [t for t, r in results.items() if r and m["number"] in r[1]] for m in mutants}
    print(f"mutate: {len(seconds)} tests measured in {time.monotonic() - begun:.0f} s; {sum(bool(t) for t in reach.values())} of {len(mutants)} mutants are reached", flush=True)
    outcomes = progress.outcomes

    def one(m):
        progress.end(m["number"], outcome_of(tree, m, reach[m["number"]], seconds, budget))
        if len(outcomes) % 50 == 0:
            print(f"mutate: {len(outcomes)} of {len(mutants)} after {time.monotonic() - begun:.0f} s, {sum(o.startswith('caught') for o in outcomes.values())} caught", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, [m for m in mutants if m["number"] not in outcomes]))
    return {m["number"]: outcomes[m["number"]] for m in mutants}
