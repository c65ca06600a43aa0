"""Counts in sentences. Pure."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 request`, `0 requests`, `2,000 requests`: `many` is `one` with an s if it is not given."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
