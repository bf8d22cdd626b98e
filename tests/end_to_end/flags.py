#!/usr/bin/env python3
"""Every flag of every command, as their --help lists them: what it changes, by the amount that its help says.

usage: flags.py MOLEN   (MOLEN_ROWS=REGEX: the rows whose flags it matches)
"""
from harness import shards, work

shards()
import effects  # noqa: E402

COMMANDS = list(effects.walk())
(work / "tiny.toml").write_text(effects.TINY)
import flags_data, flags_energy, flags_models, flags_plan, flags_redfish, flags_sweep, flags_train, flags_tune  # noqa: E402,E401,F401

effects.run_table("flags", [f"{command} {option}".strip() for command, _, options in COMMANDS for option in options])
