"""The wheel holds the product, all of it and nothing else, and works from an empty folder."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.house.rules import PRODUCT
from tests.support.processes import REPO, environment

VERSION = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel. No isolation: the build needs no network, hatchling is in `dev`."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(REPO))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed, beside what this environment has."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


def pip(*args: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *args]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_installed(site: Path, code: str, cwd: Path) -> str:
    """What `code` prints when the installed wheel comes first and this checkout is not in reach."""
    begin = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    done = subprocess.run(
        # -P and -I: neither the working directory nor PYTHONPATH is looked into.
        [sys.executable, "-I", "-c", begin + code],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_wheel_holds_the_product_and_nothing_else(wheel: Path) -> None:
    about = f"tollbook-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.startswith(f"{about}/")}
        metadata = archive.read(f"{about}/METADATA").decode()
        entry_points = archive.read(f"{about}/entry_points.txt").decode()
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    wanted = {
        path.relative_to(REPO).as_posix()
        for top in PRODUCT
        for path in (REPO / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == wanted
    assert f"Version: {VERSION}\n" in metadata and "Private :: Do Not Upload" in metadata
    assert "tollbook = gateway.cli.__main__:main" in entry_points and len(licences) == 1


def test_each_top_level_name_has_one_owner(site: Path, tmp_path: Path) -> None:
    """A stranger's wheel with a `ledger/` of its own would overwrite ours without a word."""
    code = (
        "from importlib.metadata import packages_distributions as owners\n"
        f"print({{name: owners().get(name) for name in {(*PRODUCT, 'tests')!r}}})"
    )
    owners = {name: ["tollbook"] for name in PRODUCT} | {"tests": None}
    assert run_installed(site, code, tmp_path) == str(owners)


def test_the_installed_command_answers_with_its_version(site: Path, tmp_path: Path) -> None:
    code = "import sys; from gateway.cli.__main__ import main; sys.argv[1:] = ['--version']; main()"
    assert run_installed(site, code, tmp_path) == f"tollbook {VERSION}"


def test_the_installed_ledger_brings_its_migrations(site: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "import ledger.sql.session as session\n"
        "session.open_ledger(Path('ledger.db')).close()\n"
        "print(session.__file__)"
    )
    assert run_installed(site, code, tmp_path).startswith(str(site))
    assert (tmp_path / "ledger.db").stat().st_size > 0
