"""Put the chat templates of llama.cpp's source distribution into the cache folder, by pip, and print the folder.

The archive is that of the pinned llama-cpp-python; pip takes it from wherever it is set up to. Run twice, it does no
work twice: `python tests/fetch_templates.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path, PurePosixPath

PACKAGE = "llama-cpp-python"
INSIDE = "vendor/llama.cpp/models/templates"


def pinned_version() -> str:
    """The version of llama-cpp-python that pyproject.toml asks for."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins: list[str] = project["dependencies"]
    return next(pin.partition("==")[2] for pin in pins if pin.startswith(f"{PACKAGE}=="))


def templates_folder() -> Path:
    """Where the templates of the pinned version are kept: `LOCALLLM_TEST_TEMPLATES_DIR`, else the cache folder."""
    given = os.environ.get("LOCALLLM_TEST_TEMPLATES_DIR")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "localllm" / "sdist" / f"templates-{pinned_version()}"


def fetch(folder: Path) -> int:
    """Fill the folder, in one step, so that a run that is cut short leaves nothing half done; how many there are."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            archive = download(Path(scratch))
            unpacked = Path(scratch) / "templates"
            _unpack(archive, unpacked)
            shutil.move(unpacked, folder)
    return len(list(folder.glob("*.jinja")))


def download(folder: Path) -> Path:
    """Put the source distribution of the pinned version into the folder, by pip; the archive."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
    subprocess.run([*command, "--dest", str(folder), f"{PACKAGE}=={pinned_version()}"], check=True, timeout=600)
    return next(folder.glob("*.tar.gz"))


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(archive) as packed:
        for member in packed:
            path = PurePosixPath(member.name)
            if member.isfile() and path.suffix == ".jinja" and path.parent.as_posix().endswith(INSIDE):
                content = packed.extractfile(member)
                assert content is not None
                (folder / path.name).write_bytes(content.read())


if __name__ == "__main__":
    target = templates_folder()
    print(f"{fetch(target)} templates in {target}")
