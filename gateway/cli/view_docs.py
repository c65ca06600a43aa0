"""Writes docs/views.md and docs/dbt/sources.yml from the views: `python -m gateway.cli.view_docs`.

Both are committed and a test compares them, so what they say is what a query gives.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ledger.export.columns import NUMBER, Column, duckdb_type
from ledger.export.manifest import BILL, FOCUS, PARQUET, REQUESTS
from ledger.export.views import VIEWS, View

_HOW: Final = "Written by `python -m gateway.cli.view_docs`; change the program, then run it."

_FILES: Final = {
    "exported_requests": (PARQUET, REQUESTS),
    "exported_bill": (PARQUET, BILL),
    **{f"focus_{v.replace('.', '_')}": (f"focus-{v}", FOCUS) for v in ("1.2", "1.3", "1.4")},
}
"""View of exported files to the kind of export and the name of the file."""

_INTRODUCTION: Final = """\
`tollbook query` answers one SELECT over these views, by DuckDB, from one snapshot of the ledger:

```sh
tollbook query "SELECT month, model, sum(cost) AS cost FROM bill GROUP BY ALL ORDER BY ALL"
tollbook query "SHOW TABLES"
tollbook query "DESCRIBE charges" --json
```

The question reaches nothing else: no other file, no network, no setting of DuckDB, and nothing that
it does changes the ledger. [The analyst's page](analyst.md) has worked examples with their output.

**They are stable.** A view or a column may be added; none is taken away or changes its name, type,
unit or grain without a new major version. A test holds every one of them to what it was.

**Grain** names the columns that tell the rows of a view apart: there are never two rows with the
same values there (where null counts as a value). **Unit** says what a number counts. Numbers of
tokens, requests, calls, microseconds and money add up over rows; a unit that ends in *for one* or
*per million tokens*, *percent* and *number* do not. Money adds up only within one currency, and
`requests` of `charges` stands on each charge of the same requests, so it does not add up over
buckets.

**Types** are exact: tokens are 64-bit integers, money is `DECIMAL(38,12)`, instants are UTC in
microseconds; there is no float. Null is unknown or none, never zero: a cost is null where tokens
have no price or nobody knows how many there were. DuckDB divides decimals as floats, so divide last
or not at all: `sum(cost)` is exact, `sum(cost) / 3` is not.

A view of the ledger is copied into memory when a question names it. For a ledger of many millions
of requests ask `usage_hourly`, `bill` or `charges`, or the exported files, which are read in place.

## For notebooks, BI and dbt

`tollbook query --save books.duckdb` writes all views of the ledger, from one snapshot, as tables of
a DuckDB database, with the meanings below as comments on tables and columns. Any tool that opens
DuckDB reads it; the file is replaced as a whole when it is saved again, never half. The exported
files are read as they are: `exports/parquet/billing_period=2026-11/bill.parquet` and its like.

[dbt/sources.yml](dbt/sources.yml) declares both as sources for `dbt-duckdb`: `tollbook` is the
saved database, which the profile attaches under that name, and `tollbook_exports` are the files
below the directory in the environment variable `TOLLBOOK_EXPORTS` (default `exports`). It was tried
with dbt 1.9.11 and dbt-duckdb 1.9.6 on DuckDB 2.0.1; dbt is no dependency of Tollbook.

```yaml
# profiles.yml
books:
  target: dev
  outputs:
    dev:
      type: duckdb
      path: warehouse.duckdb
      attach:
        - path: books.duckdb
          alias: tollbook
          read_only: true
```
"""


def views_page() -> str:
    """docs/views.md, as text."""
    parts = ["# Views\n", f"<!-- {_HOW} -->\n", _INTRODUCTION, "## Of the ledger\n"]
    parts += [_section(view) for view in VIEWS if not view.of_files]
    parts.append("## Of exported months\n")
    parts += [_section(view) for view in VIEWS if view.of_files]
    return "\n".join(parts)


def _section(view: View) -> str:
    grain = ", ".join(f"`{name}`" for name in view.grain)
    head = f"### `{view.name}`\n\n{view.meaning}\n\nGrain: {grain}.\n"
    if view.name.startswith("focus_"):
        return head + (
            "\nThe columns are the specification's, with its names and meanings, and ours behind "
            "them, which\nbegin with `x_`; `month` stands before them. [Exports](exports.md) has "
            "the list.\n"
        )
    rows = "\n".join(_row(column) for column in view.columns)
    return f"{head}\n| column | type | unit | meaning |\n|---|---|---|---|\n{rows}\n"


def _row(column: Column) -> str:
    return (
        f"| `{column.name}` | {duckdb_type(column)} | {column.unit or ''} | "
        f"{_cell(column.meaning)} |"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def sources_yml() -> str:
    """docs/dbt/sources.yml, as text."""
    return "\n".join(["version: 2", f"# {_HOW}", "", "sources:", *_saved(), *_exported()]) + "\n"


def _saved() -> Iterator[str]:
    yield "  - name: tollbook"
    yield f"    description: {_text('The views of the ledger, by tollbook query --save.')}"
    yield "    database: tollbook"
    yield "    schema: main"
    yield "    tables:"
    for view in VIEWS:
        if not view.of_files:
            yield from _source(view)


def _exported() -> Iterator[str]:
    yield "  - name: tollbook_exports"
    yield f"    description: {_text('The months exported by tollbook export, file by file.')}"
    yield "    tables:"
    for view in VIEWS:
        if view.of_files:
            kind, file = _FILES[view.name]
            root = "{{ env_var('TOLLBOOK_EXPORTS', 'exports') }}"
            path = f"{root}/{kind}/billing_period=*/{file}"
            yield from _source(
                view, f"read_parquet('{path}', hive_partitioning = true, union_by_name = true)"
            )


def _source(view: View, location: str | None = None) -> Iterator[str]:
    yield f"      - name: {view.name}"
    yield f"        description: {_text(view.meaning)}"
    yield "        meta:"
    yield f"          grain: {json.dumps(list(view.grain))}"
    if location is not None:
        yield f"          external_location: {_text(location)}"
    yield "        columns:"
    # In a file the month is not a column but a part of its path.
    columns = view.columns if location is None else view.columns[1:]
    for column in columns:
        yield f"          - name: {column.name}"
        yield f"            description: {_text(column.meaning)}"
        yield f"            data_type: {_text(duckdb_type(column).lower())}"
        if column.unit is not None:
            yield f"            meta: {json.dumps({'unit': column.unit, **_adds(column)})}"


def _adds(column: Column) -> dict[str, bool]:
    unit = column.unit or ""
    return {"adds_up": unit != NUMBER and unit != "percent" and not unit.endswith(_RATES)}


_RATES: Final = ("for one", "per million tokens")


def _text(text: str) -> str:
    # JSON's strings are YAML's.
    return json.dumps(text)


def main_docs(folder: Path) -> None:
    """Write both into `folder`."""
    (folder / "views.md").write_text(views_page(), encoding="utf-8")
    (folder / "dbt").mkdir(exist_ok=True)
    (folder / "dbt" / "sources.yml").write_text(sources_yml(), encoding="utf-8")


if __name__ == "__main__":
    main_docs(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
