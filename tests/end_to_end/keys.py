#!/usr/bin/env python3
"""Every key of `molen config reference`: what changing it changes, by the amount that its documentation says.

usage: keys.py MOLEN   (MOLEN_ROWS=REGEX: the rows whose keys it matches)
"""
import json

from harness import run, shards, work

shards()
import effects  # noqa: E402
import keys_framework, keys_model, keys_parallel, keys_run, keys_training  # noqa: E402,E401,F401

(work / "tiny.toml").write_text(effects.TINY)
effects.run_table("keys", [k["key"] for k in json.loads(run("config", "reference", "--format", "json").stdout)])
