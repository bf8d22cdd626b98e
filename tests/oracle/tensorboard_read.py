#!/usr/bin/env python3
"""Prints what TensorBoard itself reads from a run's event files.

usage: tensorboard_read.py DIR [--tag TAG ...] [--last STEP] [--resumed STEP]

DIR is a run's tensorboard/ folder. Fails where a tag (--tag, repeatable) is missing, where a tag has a step twice or out of order
(an earlier attempt's points were not dropped: the curve folds back), where the last step is not --last, or where the files hold no
SessionLog START at --resumed. Prints one line a tag.
"""

import argparse
import pathlib
import sys

import tensorboard
from tensorboard.backend.event_processing import event_accumulator, event_file_loader

SESSION_START = 1


def session_starts(directory):
    """Steps of the SessionLog START records, in the order TensorBoard reads the files."""
    starts = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            if event.HasField("session_log") and event.session_log.status == SESSION_START:
                starts.append(event.step)
    return starts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--tag", action="append", default=[])
    parser.add_argument("--last", type=int)
    parser.add_argument("--resumed", type=int)
    args = parser.parse_args()

    accumulator = event_accumulator.EventAccumulator(str(args.directory), size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"] + accumulator.Tags()["tensors"]
    wrong = [f"no tag {tag}" for tag in args.tag if tag not in tags]
    if not tags:
        wrong.append("no scalars at all")
    print(f"tensorboard {tensorboard.__version__} reads {len(tags)} tags from {len(list(args.directory.glob('events.out.tfevents.*')))} file(s)")
    for tag in tags:
        events = accumulator.Scalars(tag) if tag in accumulator.Tags()["scalars"] else accumulator.Tensors(tag)
        steps = [event.step for event in events]
        last = events[-1].value if hasattr(events[-1], "value") else "; ".join(text.decode() for text in events[-1].tensor_proto.string_val)
        print(f"  {tag}: {len(steps)} points, steps {steps[0]}..{steps[-1]}, last value {last}")
        if any(later <= earlier for earlier, later in zip(steps, steps[1:])):
            wrong.append(f"{tag}: steps repeat or go back: points of an earlier attempt were kept")
        if args.last is not None and tag in args.tag and steps[-1] != args.last:
            wrong.append(f"{tag}: the last step is {steps[-1]}, not {args.last}")
    starts = session_starts(args.directory)
    print(f"  SessionLog START at steps {starts}")
    if args.resumed is not None and args.resumed not in starts:
        wrong.append(f"no SessionLog START at step {args.resumed}")
    for line in wrong:
        print(f"FAIL {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
