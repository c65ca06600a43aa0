"""What an engine last said of its own load, and what this gateway sent it since then.

An engine is read every few seconds, and a burst is over in less. So a request counts from the
moment at which its backend is chosen, and for as long as it is open and cannot be in what the
engine said; and one that is in it counts no more once it has ended.
"""

from gateway.wire.scrape import Page


class Signals:
    """The newest reading of one engine. Times are seconds of the monotonic clock.

    All that an engine does not say is null. `running` and `waiting` are the requests that it told
    of, less those of this gateway that ended since: each end lets one that waits begin, and where
    none waits one less is at work. `kv_usage` is 0 to 1, the counters of prefixes are as in
    `gateway.wire.scrape.Page`. `read_at` null: it was never read.

    `picked` counts requests of this gateway that are open and that the reading cannot show; those
    which were sent while it was under way are among them, since it may miss them.
    """

    __slots__ = (
        "_ended_behind",
        "_mark",
        "_picks",
        "_seen",
        "kv_usage",
        "picked",
        "prefix_hits",
        "prefix_queries",
        "read_at",
        "running",
        "waiting",
    )

    def __init__(self) -> None:
        self.running: int | None = None
        self.waiting: int | None = None
        self.kv_usage: float | None = None
        self.prefix_hits: int | None = None
        self.prefix_queries: int | None = None
        self.read_at: float | None = None
        self.picked = 0
        self._picks = 0  # numbers that were given
        self._seen = 0  # numbers up to this one are in the reading
        self._mark = 0  # the same of a reading that is under way
        self._ended_behind = 0  # requests behind the mark that have ended

    def pick(self) -> int:
        """Count a request that is about to be sent. Returns its number, for `ended`."""
        self._picks += 1
        self.picked += 1
        return self._picks

    def ended(self, number: int) -> None:
        """The request of that number is open no more. Called once for each."""
        if number > self._seen:
            self.picked -= 1
        elif self.waiting:
            self.waiting -= 1
        elif self.running:
            self.running -= 1
        if number > self._mark:
            self._ended_behind += 1

    def reading(self) -> None:
        """The engine is about to be asked: what was sent before is in its answer."""
        self._mark = self._picks
        self._ended_behind = 0

    def take(self, page: Page, now: float) -> None:
        """Take the answer to what `reading` began."""
        self.running, self.waiting, self.kv_usage = page.running, page.waiting, page.kv_usage
        self.prefix_hits, self.prefix_queries = page.prefix_hits, page.prefix_queries
        self.read_at = now
        self._seen = self._mark
        self.picked = self._picks - self._mark - self._ended_behind

    def lose(self) -> None:
        """It is too long ago, or the engine says nothing any more: nothing is known of its load.

        Counters of prefixes stay, since they only grow.
        """
        self.running = self.waiting = self.kv_usage = self.read_at = None
