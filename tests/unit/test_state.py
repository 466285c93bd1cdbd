"""What is kept on disk survives crashes and second writers, and trusts no stranger."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from localllm.errors import ConfigInvalid, InUse
from localllm.executors.instance import (
    Instance,
    live_instance,
    new_instance,
    process_start,
    remove_instance,
    write_instance,
)
from localllm.executors.keys import forget_keys, key_is_required, key_is_valid, make_key, store_key
from localllm.executors.state import instance_file, keys_file, locked, write_atomically


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"one")
    assert mode_of(path) == 0o600

    path.chmod(0o644)
    write_atomically(path, b"two")

    assert mode_of(path) == 0o644
    assert path.read_bytes() == b"two"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")

    write_atomically(tmp_path / "link", b"new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_every_change_of_many_writers_survives(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_text("0")

    def count() -> None:
        for _ in range(20):
            with locked(path, timeout_s=200):
                write_atomically(path, str(int(path.read_text()) + 1).encode())

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert path.read_text() == "80"


def test_a_lock_that_stays_taken_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    path = tmp_path / "file"

    with locked(path), pytest.raises(InUse), locked(path, timeout_s=0.05):
        pass

    with locked(path, timeout_s=0):
        pass  # free again


def test_a_killed_writer_leaves_no_lock_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = (
        "import os, sys; from pathlib import Path; from localllm.executors.state import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=200)

    with locked(path, timeout_s=0):
        pass


def test_a_key_is_kept_as_a_hash_that_only_its_owner_can_read(tmp_path: Path) -> None:
    key = make_key()
    store_key(tmp_path, key)

    assert mode_of(keys_file(tmp_path)) == 0o600
    assert key not in keys_file(tmp_path).read_text()
    assert key_is_required(tmp_path)
    assert key_is_valid(tmp_path, key)


@pytest.mark.parametrize("wrong", ["", "x", "llm_", "\udcff", "ключ"])
def test_a_wrong_key_is_refused(tmp_path: Path, wrong: str) -> None:
    store_key(tmp_path, make_key())

    assert not key_is_valid(tmp_path, wrong)


def test_a_new_key_replaces_the_old_one(tmp_path: Path) -> None:
    old, new = make_key(), make_key()
    store_key(tmp_path, old)
    store_key(tmp_path, new)

    assert old != new
    assert not key_is_valid(tmp_path, old)
    assert key_is_valid(tmp_path, new)


def test_a_forgotten_key_opens_nothing_and_is_not_asked_for(tmp_path: Path) -> None:
    key = make_key()
    store_key(tmp_path, key)

    assert forget_keys(tmp_path)
    assert not forget_keys(tmp_path)
    assert not key_is_required(tmp_path)
    assert not key_is_valid(tmp_path, key)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"keys": 5}', '{"keys": [{"salt": 1}]}', '{"keys": [{}]}'])
def test_a_damaged_keys_file_never_opens_the_door(tmp_path: Path, content: str) -> None:
    keys_file(tmp_path).write_text(content)

    with pytest.raises(ConfigInvalid, match="damaged"):
        key_is_required(tmp_path)


def test_a_running_server_is_found_by_its_file(tmp_path: Path) -> None:
    ours = new_instance("http://127.0.0.1:1")
    write_instance(tmp_path, ours)

    assert live_instance(tmp_path) == ours

    remove_instance(tmp_path, ours)
    assert live_instance(tmp_path) is None


def test_a_pid_that_is_another_program_now_is_not_trusted(tmp_path: Path) -> None:
    write_instance(tmp_path, Instance(instance="a", pid=os.getpid(), started="some other time", url="http://x"))

    assert live_instance(tmp_path) is None


def test_a_killed_server_is_not_running(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_start(process.pid)
    assert started is not None
    write_instance(tmp_path, Instance(instance="a", pid=process.pid, started=started, url="http://x"))
    assert live_instance(tmp_path) is not None

    process.kill()
    process.communicate()

    assert live_instance(tmp_path) is None


def test_a_server_that_ends_leaves_the_file_of_a_later_one(tmp_path: Path) -> None:
    first, second = new_instance("http://127.0.0.1:1"), new_instance("http://127.0.0.1:2")
    write_instance(tmp_path, second)

    remove_instance(tmp_path, first)

    assert live_instance(tmp_path) == second


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"instance": "a", "pid": "x"})])
def test_a_damaged_server_file_means_no_server(tmp_path: Path, content: str) -> None:
    instance_file(tmp_path).write_text(content)

    assert live_instance(tmp_path) is None
