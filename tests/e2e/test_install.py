"""The built package: installed in a clean virtual environment, its command line works there."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = "/"
"""Where the commands run: not in the checkout, whose files must not be found by accident."""


def run(command: Sequence[str | Path], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=OUTSIDE, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built out of the source distribution, so that both are whole."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT])
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def clean_venv(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A virtual environment with the wheel; the dependencies, llama.cpp's build among them, come from this one's."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel])
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # a path out of a .pth file is searched, but its own .pth files, the editable install's, are not read
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    rooms = {name.split("/")[1] for name in names if name.startswith("localllm/")}

    assert tops == {"localllm", f"{wheel.name.split('-')[0]}-{wheel.name.split('-')[1]}.dist-info"}
    assert rooms == {
        "__init__.py",
        "__main__.py",
        "errors.py",
        "py.typed",
        "api",
        "executors",
        "planner",
        "runtime",
        "schemas",
    }


def test_the_wheel_holds_every_file_of_the_package(wheel):
    """A folder or a kind of data that pyproject.toml forgets works in the checkout and fails once installed."""
    built = set(zipfile.ZipFile(wheel).namelist())
    listed = run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]).splitlines()
    rooms = ("api/", "executors/", "planner/", "runtime/", "schemas/")
    ours = {f"localllm/{name}" for name in listed if name.startswith(rooms) and Path(ROOT, name).is_file()}

    assert ours - built == set()


def test_the_installed_command_line_works(clean_venv, clean_env, models_dir, model_path):
    localllm = clean_venv / "bin" / "localllm"
    env = clean_env | {"LOCALLLM_MODELS_DIR": str(models_dir), "LOCALLLM_OUTPUT": "json"}
    place = run([clean_venv / "bin" / "python", "-c", "import localllm; print(localllm.__file__)"], env)
    report = json.loads(run([localllm, "--dry-run", "models", "load", "smollm2-135m"], env))
    nobody = ("--server", "http://127.0.0.1:9", "--max-tokens", "3", "--model", "smollm2-135m")
    answer = json.loads(run([localllm, "chat", "hi", *nobody], env))

    assert Path(place.strip()).is_relative_to(clean_venv)
    assert json.loads(run([localllm, "version"], env))
    assert report["plan"]["command"] == "models.load"
    assert answer["usage"]["completion_tokens"] == 3
