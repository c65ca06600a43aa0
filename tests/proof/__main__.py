"""Play plans by hand: `python -m tests.proof --seed N --scripts N`, or one: `--plan "LINE"`."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.proof.plans import CHAT, TEXT, drawn, read
from tests.proof.world import AT_ONCE, prove


def main() -> int:
    """Returns 1 if any script is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--seed", type=int, default=time.monotonic_ns() % 1_000_000)
    parser.add_argument("--scripts", type=int, default=250)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--chats", action="store_true", help="chats and completions alone")
    parser.add_argument("--no-shrink", action="store_true", help="show broken plans as drawn")
    parser.add_argument("--plan", help="one plan, as a failing one is printed")
    args = parser.parse_args()
    dice = random.Random(args.seed)
    plans = [read(args.plan)] if args.plan else []
    while not args.plan and len(plans) < args.scripts:
        plan = drawn(dice)
        if not args.chats or plan.path in (CHAT, TEXT):
            plans.append(plan)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tollbook-proof-") as directory:
        played = asyncio.run(
            prove(Path(directory), plans, args.at_once, shrinks=0 if args.no_shrink else 3)
        )
    print(f"seed {args.seed}: {played.words()} in {time.monotonic() - began:.1f} s")
    for broken in played.broken:
        print(broken.words())
    return bool(played.broken)


if __name__ == "__main__":
    sys.exit(main())
