"""Random scripts by the thousand: the long form of `test_scripts.py`."""

import asyncio

from tests.kill.books import Measured
from tests.kill.place import Place, Rounds
from tests.proof.plans import drawn
from tests.proof.world import prove

SCRIPTS_IN_A_ROUND = 500


def scripts(place: Place, rounds: Rounds) -> Measured:
    """Random scripts of backends and clients, 500 a round: the ledger says what the backend does.

    The gateway has one worker and two by turns. The first round with a broken script ends the run;
    each is shown as small as it could be made.
    """
    dice = place.dice("scripts")
    measured = Measured()
    for number in rounds:
        plans = [drawn(dice) for _ in range(SCRIPTS_IN_A_ROUND)]
        folder = place.folder()
        folder.mkdir()
        workers = 1 + number % 2
        played = asyncio.run(prove(folder, plans, gateway={"workers": workers}))
        place.say(f"round {number}: {played.words()}")
        broken = "\n".join(one.words() for one in played.broken)
        assert not broken, f"{len(played.broken)} broken scripts:\n{broken}"
        measured = measured.plus(
            Measured(
                requests=played.scripts,
                served=played.outcomes.get("completed", 0),
                cut=played.scripts - played.outcomes.get("completed", 0),
                tokens=played.tokens,
            )
        )
    return measured
