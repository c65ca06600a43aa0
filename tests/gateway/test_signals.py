"""What counts as sent since an engine was last read: a model of open requests says the same."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.signals import Signals
from gateway.wire.scrape import Page

STEPS = st.lists(
    st.one_of(
        st.just(("pick", 0)),
        st.tuples(st.just("end"), st.integers(0, 1000)),
        st.just(("reading", 0)),
        st.just(("take", 0)),
    ),
    max_size=80,
)


@given(STEPS)
def test_picked_are_the_open_requests_that_no_reading_can_show(
    steps: list[tuple[str, int]],
) -> None:
    signals = Signals()
    still_open: list[int] = []
    seen = mark = given_out = 0
    for step, which in steps:
        if step == "pick":
            given_out = signals.pick()
            still_open.append(given_out)
        elif step == "end" and still_open:
            signals.ended(still_open.pop(which % len(still_open)))
        elif step == "reading":
            signals.reading()
            mark = given_out
        elif step == "take":
            signals.take(Page(), 1.0)
            seen = mark
        assert signals.picked == sum(1 for number in still_open if number > seen)


def test_a_burst_counts_until_the_engine_itself_shows_it() -> None:
    signals = Signals()
    first = [signals.pick() for _ in range(5)]
    assert signals.picked == 5
    signals.reading()
    late = signals.pick()
    signals.take(Page(running=4, waiting=1, kv_usage=0.5), 7.0)
    assert (signals.running, signals.waiting, signals.kv_usage) == (4, 1, 0.5)
    assert (signals.read_at, signals.picked) == (7.0, 1)
    for number in (*first, late):
        signals.ended(number)
    assert signals.picked == 0


def test_what_ended_since_the_reading_is_at_the_engine_no_more() -> None:
    """Else one that was read in a busy moment is shunned for seconds after that is over."""
    signals = Signals()
    told = [signals.pick() for _ in range(6)]
    signals.reading()
    signals.take(Page(running=4, waiting=2), 7.0)
    late = signals.pick()
    left = []
    for number in told:
        signals.ended(number)
        left.append((signals.running, signals.waiting))
    assert left == [(4, 1), (4, 0), (3, 0), (2, 0), (1, 0), (0, 0)]
    assert signals.picked == 1
    signals.ended(late)
    assert (signals.running, signals.waiting, signals.picked) == (0, 0, 0)


def test_what_others_sent_is_not_taken_away() -> None:
    signals = Signals()
    own = signals.pick()
    signals.reading()
    signals.take(Page(running=9, waiting=3), 7.0)
    signals.ended(own)
    assert (signals.running, signals.waiting) == (9, 2)


def test_an_end_says_nothing_of_an_engine_that_said_nothing() -> None:
    signals = Signals()
    own = signals.pick()
    signals.reading()
    signals.take(Page(), 7.0)
    signals.ended(own)
    assert (signals.running, signals.waiting) == (None, None)


def test_what_was_lost_is_not_known_and_never_zero() -> None:
    signals = Signals()
    signals.reading()
    signals.take(Page(running=4, waiting=1, kv_usage=0.5, prefix_hits=3, prefix_queries=9), 7.0)
    signals.lose()
    assert (signals.running, signals.waiting, signals.kv_usage, signals.read_at) == (None,) * 4
    assert (signals.prefix_hits, signals.prefix_queries) == (3, 9)
