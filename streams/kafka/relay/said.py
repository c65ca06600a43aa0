"""Trouble with Kafka in words: said when it begins and when it is over, and not in between."""

from streams.local.process import Say


class Trouble:
    """`fault` is why Kafka takes nothing at the moment; null if it does."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.fault: str | None = None

    def say(self, words: str) -> None:
        """Kafka takes nothing, and `words` says why."""
        if self.fault is None:
            self._say(f"{words}; trying again, the spools keep everything meanwhile")
        self.fault = words

    def over(self) -> None:
        """Kafka has taken something."""
        if self.fault is not None:
            self.fault = None
            self._say("Kafka takes records again")
