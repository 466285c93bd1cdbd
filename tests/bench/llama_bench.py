"""Build llama.cpp's own `llama-bench`: its code out of the source distribution, linked with the installed libraries.

So it measures the very build of llama-cpp-python that the engine loads, whatever arguments that had, and only its own
two files are compiled, by `CXX` or `c++`; pip gets them. It finds the libraries by `environment()`: no path is written
into it.

Run twice, it does no work twice: `python tests/bench/llama_bench.py FILE`.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).parents[1]))

from fetch_templates import download

sys.path.pop(0)

INSIDE = "vendor/llama.cpp"
CODE = ("tools/llama-bench", "include", "ggml/include", "common", "vendor")
HEADERS = ("include", "ggml/include", "common", "vendor")
LIBRARIES = ("llama-common", "llama", "ggml", "ggml-base")


def library_folders() -> tuple[Path, ...]:
    """Where the installed package has its libraries: those that it loads, then those that it only ships."""
    found = importlib.util.find_spec("llama_cpp")
    if found is None or found.origin is None:
        sys.exit("error: llama-cpp-python is not installed\nhint: `make setup` installs it")
    package = Path(found.origin).parent
    return package / "lib", package.parent / "lib"


def environment() -> dict[str, str]:
    """The environment in which the program, and the linker, finds the libraries."""
    name = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    own = [os.environ[name]] if os.environ.get(name) else []
    return {**os.environ, name: os.pathsep.join([*map(str, library_folders()), *own])}


def build(program: Path) -> None:
    """Build the program unless it is there; a build that is cut short leaves nothing in its place."""
    if program.is_file():
        return
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        source, made = _unpack(download(Path(scratch)), Path(scratch)), Path(scratch) / program.name
        command = [
            *shlex.split(os.environ.get("CXX", "c++")),
            *("-std=c++17", "-O3", "-DNDEBUG", "-DGGML_SHARED", "-DLLAMA_SHARED"),
            *(f"-I{source / folder}" for folder in HEADERS),
            *map(str, sorted((source / "tools/llama-bench").glob("*.cpp"))),
            *("-o", str(made)),
            *(f"-L{folder}" for folder in library_folders()),
            *(f"-l{name}" for name in LIBRARIES),
            "-pthread",
        ]
        if subprocess.run(command, env=environment(), check=False).returncode:
            sys.exit(f"error: `{shlex.join(command)}` failed")
        made.replace(program)


def _unpack(archive: Path, scratch: Path) -> Path:
    """Unpack the program's code and the headers it may read; the source tree's folder."""
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, (member for member in packed if _is_read(member.name)), filter="data")
    return next(scratch.glob(f"*/{INSIDE}"))


def _is_read(name: str) -> bool:
    inside = "/".join(PurePosixPath(name).parts[1:])
    return inside.startswith(tuple(f"{INSIDE}/{folder}/" for folder in CODE))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
