"""Which backends can be seen from here: those of the registry, of the settings, and of gateways."""

from gateway.cli.backend_facts import Shown, shown, unknown
from gateway.cli.data import registry
from gateway.cli.failure import Stop
from gateway.cli.place import Place
from gateway.cli.views import views_of
from ledger.clock import SystemClock
from ledger.folds.book import Book


def registry_or_none(place: Place) -> Book:
    """The registry; an empty one where no gateway has made a data directory yet."""
    if place.embedded and not place.data.exists():
        return Book()
    return registry(place)


def everything(place: Place, book: Book) -> list[Shown]:
    """Every backend that is known here, by whatever way."""
    now = SystemClock().now()
    return shown(book, place.settings.backends, views_of(place).values(), now)


def is_known(place: Place, name: str) -> bool:
    """True if a gateway has this backend in its settings, as far as can be seen from here."""
    if any(one.id == name for one in place.settings.backends):
        return True
    return any(view.backend_id == name for view in views_of(place).values())


def no_such(place: Place, book: Book, name: str) -> Stop:
    """That there is no such backend, with the nearest that there is."""
    return unknown(name, [one.backend_id for one in everything(place, book)])
