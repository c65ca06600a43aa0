"""Apache Kafka's own jars, from Maven Central by way of jgo: once for a user, then from a cache.

`python -m gateway.dev.jars FOLDER` fetches them into a folder. It is a process of its own, so that
what jgo leaves open ends with it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from gateway.dev.errors import DevFailed

KAFKA_VERSION: Final = "4.1.1"
BROKER: Final = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
LOGGING: Final = "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"
"""Without it the broker says nothing at all, not even why it ends. It is resolved by itself: beside
the broker, its parent's list of versions would put Kafka's clients back to 3.8."""
FETCH_SECONDS_MAX: Final = 600


def kafka_jars(cache: Path) -> Path:
    """The folder of all jars, below `cache`; fetched if they are not there (43 MB).

    Two processes at once fetch once: the second one waits. Raises `DevFailed` with words.
    """
    folder = cache / f"kafka-{KAFKA_VERSION}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gateway.dev.jars", str(fresh)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise DevFailed(
                f"Kafka {KAFKA_VERSION} cannot be fetched from Maven Central: {' '.join(said)}; it "
                "needs the network once, and `pip install 'tollbook[dev]'`"
            )
        # A rename, so that a process killed on the way never leaves half a broker.
        (fresh / "jars").rename(folder)
    except subprocess.TimeoutExpired as late:
        raise DevFailed(
            f"Kafka {KAFKA_VERSION} was not fetched within {FETCH_SECONDS_MAX} s; try again"
        ) from late
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def main() -> int:
    """Fetch into the folder of the first argument; the jars are then in its folder `jars`."""
    from jgo.env import EnvironmentBuilder
    from jgo.maven import MavenContext, PythonResolver

    folder = Path(sys.argv[1])
    context = MavenContext(resolver=PythonResolver(), repo_cache=folder / "maven")
    builder = EnvironmentBuilder(context=context, cache_dir=folder / "jgo")
    jars = folder / "jars"
    jars.mkdir(parents=True)
    for endpoint, pattern in ((BROKER, "*.jar"), (LOGGING, "log4j-*.jar")):
        for jar in Path(builder.from_endpoint(endpoint).path).rglob(pattern):
            shutil.copyfile(jar, jars / jar.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
