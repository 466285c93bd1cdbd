"""`config get|set|unset|list`: one file, its comments kept, no change lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from localllm.errors import BadInput, ConfigInvalid, LocalLLMError, NotFound
from localllm.executors.context import Context
from localllm.executors.dispatch import preview
from localllm.executors.events import Result
from localllm.planner.codec import load_plan
from localllm.planner.settings import resolve_settings

Run = Callable[..., Result]


def set_plan(key: str, value: str) -> dict[str, str]:
    return {"command": "config.set", "key": key, "value": value}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_a_set_value_is_read_back_in_its_type(run_result: Run, file: Path) -> None:
    done = run_result(set_plan("port", "9000"))

    assert done.data["before"] is None
    assert done.data["after"] == 9000
    assert resolve_settings({}, {}, config_file=file).port == 9000
    assert run_result({"command": "config.get", "key": "port"}).data["value"] == 9000


def test_comments_and_order_stay(run_result: Run, file: Path) -> None:
    file.write_text("# mine\nport = 1 # odd\n\n[aliases]\nsmall = 'x' # why\n")

    run_result(set_plan("port", "2"))
    run_result(set_plan("aliases.big", "y"))

    text = file.read_text()
    assert text.startswith("# mine\nport = 2 # odd\n")
    assert "small = 'x' # why" in text
    assert resolve_settings({}, {}, config_file=file).aliases == {"small": "x", "big": "y"}


def test_a_scalar_set_beside_a_table_stays_above_it(run_result: Run, file: Path) -> None:
    run_result(set_plan("aliases.small", "x"))
    run_result(set_plan("port", "2"))

    settings = resolve_settings({}, {}, config_file=file)
    assert settings.port == 2
    assert settings.aliases == {"small": "x"}


def test_unset_brings_the_default_back(run_result: Run, file: Path) -> None:
    run_result(set_plan("port", "9000"))

    assert run_result({"command": "config.unset", "key": "port"}).data["changed"] is True
    assert run_result({"command": "config.unset", "key": "port"}).data["changed"] is False
    assert resolve_settings({}, {}, config_file=file).port == 8484


@pytest.mark.parametrize(
    ("command", "fault"), [("get", NotFound), ("set", ConfigInvalid), ("unset", ConfigInvalid)], ids=str
)
def test_an_unknown_key_names_the_nearest(
    run_result: Run, file: Path, command: str, fault: type[LocalLLMError]
) -> None:
    """Reading what does not exist finds nothing; writing it is wrong input, as it is in the file."""
    plan = {"command": f"config.{command}", "key": "n_thread"} | ({"value": "4"} if command == "set" else {})

    with pytest.raises(fault, match="n_thread") as caught:
        run_result(plan)

    assert caught.value.hint == "did you mean `n_threads`?"
    assert not file.exists()


@pytest.mark.parametrize(("key", "value"), [("port", "80a"), ("port", "99999"), ("log_level", "loud"), ("port", "")])
def test_a_bad_value_names_the_key_and_leaves_the_file(run_result: Run, file: Path, key: str, value: str) -> None:
    file.write_text("port = 1\n")

    with pytest.raises(ConfigInvalid, match=key):
        run_result(set_plan(key, value))

    assert file.read_text() == "port = 1\n"


def test_a_secret_has_no_place_in_the_file(run_result: Run, file: Path) -> None:
    with pytest.raises(BadInput, match="secret"):
        run_result(set_plan("api_key", "llm_x"))

    assert not file.exists()


def test_a_secret_is_never_shown(run_result: Run, make_context: Callable[..., Context]) -> None:
    ctx = make_context(env={"LOCALLLM_API_KEY": "llm_sesame"})

    assert "sesame" not in repr(run_result({"command": "config.list"}, ctx).data)
    assert run_result({"command": "config.get", "key": "api_key"}, ctx).data["value"] == "***"


def test_a_faulty_file_is_not_rewritten(run_result: Run, make_context: Callable[..., Context], file: Path) -> None:
    ctx = make_context()
    file.write_text("port = [\n")

    with pytest.raises(ConfigInvalid, match=r"config\.toml:"):
        run_result(set_plan("port", "1"), ctx)

    assert file.read_text() == "port = [\n"


def test_two_sets_at_once_both_survive(tmp_path: Path, file: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from localllm.executors.config import set_value\n"
        "from localllm.executors.context import Context\n"
        "from localllm.planner.codec import load_plan\n"
        "from localllm.planner.settings import resolve_settings\n"
        "settings = resolve_settings({}, {}, config_file=sys.argv[1], must_exist=False)\n"
        "async def run():\n"
        "    for n in range(20):\n"
        "        plan = load_plan({'command': 'config.set', 'key': f'aliases.{sys.argv[2]}{n}', 'value': 'x'})\n"
        "        async for _ in set_value(plan, Context(settings=settings)): pass\n"
        "asyncio.run(run())\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(file), name]) for name in ("a", "b")]

    assert [writer.wait(200) for writer in writers] == [0, 0]
    names = resolve_settings({}, {}, config_file=file).aliases
    assert set(names) == {f"{who}{n}" for who in "ab" for n in range(20)}


def test_a_file_that_cannot_be_written_is_a_clear_error(run_result: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()

    with pytest.raises(ConfigInvalid, match=r"config\.toml"):
        run_result({"command": "config.get", "key": "port"})


def test_a_dry_run_shows_the_change_and_makes_none(make_context: Callable[..., Context], file: Path) -> None:
    file.write_text("port = 1\n")

    report = preview(load_plan(set_plan("port", "2")), make_context())

    assert report["diff"] == {"before": {"port": 1}, "after": {"port": 2}}
    assert report["effects"] == ["update"]
    assert report["preconditions"][0]["kind"] == "config"
    assert file.read_text() == "port = 1\n"


def test_a_dry_run_of_no_change_would_change_nothing(make_context: Callable[..., Context], file: Path) -> None:
    file.write_text("port = 2\n")

    assert preview(load_plan(set_plan("port", "2")), make_context())["effects"] == ["read"]


def test_a_dry_run_says_that_the_environment_goes_first(make_context: Callable[..., Context]) -> None:
    report = preview(load_plan(set_plan("port", "2")), make_context(env={"LOCALLLM_PORT": "3"}))

    assert any("LOCALLLM_PORT" in warning for warning in report["warnings"])


def test_the_list_tells_origins(run_result: Run) -> None:
    run_result(set_plan("port", "9000"))

    rows = {row["key"]: row for row in run_result({"command": "config.list"}).data["settings"]}
    assert rows["port"]["origin"].startswith("file ")
    assert rows["host"]["origin"] == "default"
