"""The house rules, as functions over one module's syntax tree. Pure; each names its way out.

What a general linter does (unused names, naive datetimes, formatting) is ruff's; these are the
rules of this house. `check` is the only thing that tests call.
"""

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

import msgspec

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
PRODUCT = ("gateway", "streams", "ledger", "migrations")

CLOCK_HOME = "ledger/clock.py"
CHANCE_HOME = "ledger/identity.py"
WALL_CLOCK = {
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "time.ctime",
    "time.strftime",
}
MONOTONIC = {
    f"time.{name}{unit}"
    for name in ("monotonic", "perf_counter", "process_time")
    for unit in ("", "_ns")
}
CHANCE_MODULES = {"random", "secrets", "uuid", "uuid_utils"}
SKIPS = {
    "pytest.skip",
    "pytest.importorskip",
    "pytest.mark.skip",
    "pytest.mark.skipif",
    "unittest.skip",
}
BROAD = {"Exception", "BaseException"}
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" + "XX")


class Finding(msgspec.Struct, frozen=True, order=True):
    """One violation: where, which rule, and what to do instead."""

    path: str
    line: int
    rule: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.rule}] {self.instead}"


class Module(msgspec.Struct, frozen=True):
    """One parsed module. `path` is relative to the repository, with slashes."""

    path: str
    text: str
    tree: ast.Module
    names: dict[str, str]

    @property
    def top(self) -> str:
        return self.path.partition("/")[0]

    @property
    def product(self) -> bool:
        return self.top in PRODUCT

    def found(self, node: ast.AST, rule: str, instead: str) -> Finding:
        return Finding(self.path, getattr(node, "lineno", 1), rule, instead)

    def dotted(self, node: ast.expr) -> str:
        """The full name that an expression like `dt.now` means here, empty if it is none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.names.get(node.id, node.id), *reversed(parts)])


def check(path: str, text: str) -> list[Finding]:
    """Every violation in the module `text`, which stands at `path` in the repository."""
    tree = ast.parse(text)
    module = Module(path, text, tree, dict(_imported_names(tree)))
    return sorted(finding for rule in RULES for finding in rule(module))


def _imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local name to full name of everything imported anywhere in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield (
                    (name.asname, name.name)
                    if name.asname
                    else (
                        name.name.partition(".")[0],
                        name.name.partition(".")[0],
                    )
                )
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"


def _imported_modules(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""


def _sizes(module: Module) -> Iterator[Finding]:
    lines = module.text.count("\n")
    if lines > MODULE_LINES_MAX:
        said = f"{lines} lines, at most {MODULE_LINES_MAX}: split it by what changes together"
        yield module.found(module.tree, "module-length", said)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                said = f"{node.name}: {length} lines, at most {FUNCTION_LINES_MAX}: split it"
                yield module.found(node, "function-length", said)


def _clock(module: Module) -> Iterator[Finding]:
    """A wall clock anywhere, a monotonic one in the product: both come from `ledger.clock`."""
    if module.path == CLOCK_HOME:
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        name = module.dotted(node)
        if name in WALL_CLOCK:
            yield module.found(node, "wall-clock", f"{name}: take the time from a `Clock`")
        elif name in MONOTONIC and module.product:
            yield module.found(node, "wall-clock", f"{name}: use `Clock.monotonic`")


def _chance(module: Module) -> Iterator[Finding]:
    if not module.product or module.path == CHANCE_HOME:
        return
    for node, name in _imported_modules(module.tree):
        if name.partition(".")[0] in CHANCE_MODULES:
            said = f"{name}: identifiers and secrets are minted in `ledger.identity`"
            yield module.found(node, "chance", said)
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Attribute) and module.dotted(call) == "os.urandom":
            yield module.found(call, "chance", "os.urandom: mint it in `ledger.identity`")


def _broad_except(module: Module) -> Iterator[Finding]:
    said = "name the errors; what must be broad ends by raising again"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and _is_broad(module, node.type):
            if not isinstance(node.body[-1], ast.Raise):
                yield module.found(node, "broad-except", said)
        elif (
            isinstance(node, ast.Call)
            and module.dotted(node.func) == "contextlib.suppress"
            and any(_is_broad(module, argument) for argument in node.args)
        ):
            yield module.found(node, "broad-except", said)


def _is_broad(module: Module, caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    several = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(module.dotted(one) in BROAD for one in several)


def _environment(module: Module) -> Iterator[Finding]:
    home = module.path.endswith("/settings.py") or module.path == "gateway/cli/main.py"
    if not module.product or home:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute | ast.Name) and module.dotted(node) in (
            "os.environ",
            "os.getenv",
            "os.putenv",
        ):
            yield module.found(node, "environment", "read it once, in a `settings.py`")


def _commit(module: Module) -> Iterator[Finding]:
    if not module.product or module.path.startswith("ledger/sql/"):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "commit":
            yield module.found(node, "commit", "only `ledger.sql` ends a transaction")


def _imports(module: Module) -> Iterator[Finding]:
    for node, name in _imported_modules(module.tree):
        top = name.partition(".")[0]
        if module.product and top == "tests":
            yield module.found(node, "imports-tests", "what both need belongs into the product")
        if module.path.startswith("migrations/versions/") and top in PRODUCT:
            said = "a migration is frozen in time: say in it what it needs"
            yield module.found(node, "migration-imports", said)


def _test_files(module: Module) -> Iterator[Finding]:
    if module.top != "tests":
        return
    tests = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]
    named = PurePosixPath(module.path).name.startswith("test_")
    if named and not tests:
        yield module.found(module.tree, "test-file", "a test file without a test: add or rename")
    if tests and not named:
        yield module.found(tests[0], "test-file", "pytest reads only test_*.py: rename the file")


def _unfinished(module: Module) -> Iterator[Finding]:
    for number, line in enumerate(module.text.splitlines(), 1):
        if any(mark in line for mark in UNFINISHED):
            said = "do it, or put it into an issue"
            yield Finding(module.path, number, "unfinished", said)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield module.found(node, "unfinished", "write it, or use a Protocol")
        elif isinstance(node, ast.Attribute) and module.dotted(node) in SKIPS:
            yield module.found(node, "skip", "a test runs or is deleted; a gap is a strict xfail")


def _shape(module: Module) -> Iterator[Finding]:
    if module.path.endswith("/__init__.py"):
        if module.tree.body and module.path != "ledger/events/__init__.py":
            yield module.found(module.tree, "empty-init", "an `__init__.py` is empty here")
    elif ast.get_docstring(module.tree) is None:
        yield module.found(module.tree, "docstring", "say why this module exists")


RULES = (
    _sizes,
    _clock,
    _chance,
    _broad_except,
    _environment,
    _commit,
    _imports,
    _test_files,
    _unfinished,
    _shape,
)
