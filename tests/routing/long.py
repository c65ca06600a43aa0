"""Routing for long: the steps of `faults.py` in any order, with ten thousand errors of clients."""

from tests.kill.books import Measured
from tests.kill.place import Place, Rounds
from tests.routing import faults
from tests.routing.crowd import Said
from tests.support.processes import tollbook

ERRORS, LEAVERS, FLAPS, SLOW, FROZEN = 10_000, 200, 12, 2_000, 2_000


def routing(place: Place, rounds: Rounds) -> Measured:
    """Servers flap, hang, are slow and come back from the dead; ten thousand clients' errors.

    Each round is one life of a gateway, whose books are audited at its end.
    """
    dice = place.dice("routing")
    measured = Measured()
    steps = {
        "slow": lambda scene: faults.slow(scene, SLOW),
        "clients' errors": lambda scene: faults.clients_errors(scene, ERRORS, LEAVERS),
        "flapping": lambda scene: faults.flapping(scene, FLAPS, dice),
        "hanging": lambda scene: faults.hanging(scene, FROZEN),
        "returning": faults.returning,
    }
    for number in rounds:
        folder = place.folder()
        folder.mkdir()
        order = dice.sample(sorted(steps), len(steps))
        answers: list[Said] = []
        with faults.scene_in(folder) as scene:
            for name in order:
                answers += steps[name](scene)
        tollbook(scene.data, "audit")
        good = sum(answer.good for answer in answers)
        failed = sum(answer.status not in (200, 400) for answer in answers)
        place.say(f"round {number}: {len(answers)} answers, {good} good, {failed} not in time")
        measured = measured.plus(Measured(requests=len(answers), served=good, cut=failed))
    return measured
