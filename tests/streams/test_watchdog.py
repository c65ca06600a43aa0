"""The watchdog of readers: what it takes for standing still, and what not."""

import threading

from streams.kafka.watchdog import Watchdog
from tests.streams.builders import FakeClock

LIMIT = 120


def watched() -> tuple[FakeClock, Watchdog]:
    clock = FakeClock()
    return clock, Watchdog(clock, LIMIT, lambda words: None)


def test_a_log_that_does_not_move_is_named() -> None:
    clock, dog = watched()
    for _ in range(13):
        assert dog.verdict() is None
        dog.look({"still": (5, 9), "moving": (int(clock.seconds), 999)})
        clock.advance(10)
    assert dog.verdict() is not None
    assert "still stands at 5 for 130 seconds" in str(dog.verdict())


def test_a_log_at_its_end_may_stand() -> None:
    clock, dog = watched()
    for _ in range(100):
        dog.look({"idle": (9, 9)})
        clock.advance(10)
        assert dog.verdict() is None


def test_moving_a_little_is_moving() -> None:
    clock, dog = watched()
    for number in range(100):
        dog.look({"slow": (number // 10, 999)})
        clock.advance(10)
        assert dog.verdict() is None


def test_a_known_reason_excuses() -> None:
    clock, dog = watched()
    for number in range(100):
        dog.look({"log": (5, 9)})
        clock.advance(10)
        if number % 10 == 9:
            dog.excuse()
        assert dog.verdict() is None


def test_a_loop_that_hangs_is_seen() -> None:
    clock, dog = watched()
    dog.look({})
    clock.advance(LIMIT + 1)
    assert "has not looked around for 121 seconds" in str(dog.verdict())


def test_the_thread_says_it_once() -> None:
    clock, said, heard = FakeClock(), list[str](), threading.Event()

    def on_stall(words: str) -> None:
        said.append(words)
        heard.set()

    dog = Watchdog(clock, 0.06, on_stall)
    dog.start()
    clock.advance(1)
    assert heard.wait(60)
    dog.stop()
    assert len(said) == 1
