"""Long forms of the proofs: `python -m tests.soak NAME --seed N [--rounds N | --minutes M]`.

The scenarios are the suite's own, played for longer. The first broken promise ends the run with
exit code 1, the seed and the round; what a good run measured is its last line.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.long import cluster_killed, cluster_members, cluster_servers
from tests.kill.broken import broken_middle, torn_tail
from tests.kill.crash import fewer_workers, kill_gateway, kill_runner
from tests.kill.full import disk_full, spool_full
from tests.kill.place import Place, Rounds, Scenario
from tests.kill.put_back import put_back
from tests.kill.stop import sigterm
from tests.kill.world import fleet
from tests.proof.long import scripts
from tests.routing.long import routing

SCENARIOS: dict[str, Scenario] = {
    "kill-gateway": kill_gateway,
    "kill-runner": kill_runner,
    "fewer-workers": fewer_workers,
    "put-back": put_back,
    "sigterm": sigterm,
    "spool-full": spool_full,
    "disk-full": disk_full,
    "torn-tail": torn_tail,
    "broken-middle": broken_middle,
    "cluster-killed": cluster_killed,
    "cluster-servers": cluster_servers,
    "cluster-members": cluster_members,
    "scripts": scripts,
    "routing": routing,
}

ROUNDS_DEFAULT = 20


def main() -> int:
    """Play one scenario. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("name", nargs="?", choices=SCENARIOS, metavar="NAME")
    parser.add_argument("--list", action="store_true", help="say which scenarios there are")
    parser.add_argument("--seed", type=int, help="repeat the dice of another run")
    parser.add_argument("--rounds", type=int, help=f"how many; default {ROUNDS_DEFAULT}")
    parser.add_argument("--minutes", type=float, help="begin rounds for so long instead")
    parser.add_argument(
        "--keep", action="store_true", help="keep the directories of a good run too"
    )
    args = parser.parse_args()
    if args.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:15} {(scenario.__doc__ or '').splitlines()[0]}")
        return 0
    if args.name is None:
        parser.error("give the NAME of a scenario; --list says which there are")
    count = args.rounds
    if count is None and args.minutes is None:
        count = ROUNDS_DEFAULT
    seed = args.seed if args.seed is not None else time.monotonic_ns() % 1_000_000
    return _play(args.name, seed, Rounds(count, args.minutes), keep=args.keep)


def _play(name: str, seed: int, rounds: Rounds, *, keep: bool) -> int:
    root = Path(tempfile.mkdtemp(prefix="tollbook-soak-"))
    began = time.monotonic()
    print(f"{name}, seed {seed}, in {root}", flush=True)

    def say(words: str) -> None:
        print(f"[{time.monotonic() - began:7.1f} s] {words}", flush=True)

    try:
        with fleet(root) as ships:
            measured = SCENARIOS[name](Place(ships, root, seed, say), rounds)
    except BaseException:
        print(f"broken: {name}, seed {seed}, round {rounds.played}; see {root}", flush=True)
        raise
    say(f"{rounds.played} rounds, nothing broken: {measured.words()}")
    if not keep:
        shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
