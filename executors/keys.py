"""The API key: made here, kept as a salted hash, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from ..errors import ConfigInvalid, StalePlan
from .state import keys_file, locked, write_atomically

PREFIX = "llm_"
HINT = "run `localllm auth disable`, then `localllm auth enable` for a new key"


def make_key() -> str:
    """A fresh key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def store_key(state_dir: str | Path, key: str) -> None:
    """Keep the key's hash as the only one; the file is readable by its owner alone."""
    # a random 256-bit key cannot be guessed, so a slow hash would only slow each request down
    salt = os.urandom(16)
    entry = {"salt": salt.hex(), "sha256": _digest(salt, key), "created": int(time.time())}
    path = keys_file(state_dir)
    with locked(path):
        write_atomically(path, json.dumps({"format_version": "1.0", "keys": [entry]}).encode() + b"\n", mode=0o600)


def forget_keys(state_dir: str | Path) -> bool:
    """Remove every key; whether there was one."""
    path = keys_file(state_dir)
    if not path.exists():
        return False
    with locked(path):
        path.unlink(missing_ok=True)
    return True


def read_keys(state_dir: str | Path) -> list[dict[str, Any]]:
    """The kept entries, none where auth is off.

    Raises ConfigInvalid for a damaged file, because that must not open the door.
    """
    path = keys_file(state_dir)
    try:
        raw = json.loads(path.read_bytes())
        found = raw["keys"]
        if not all(isinstance(entry["salt"], str) and isinstance(entry["sha256"], str) for entry in found):
            raise TypeError
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigInvalid(f"the keys file `{path}` cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigInvalid(f"the keys file `{path}` is damaged", hint=HINT) from None
    return list(found)


def keys_revision(state_dir: str | Path) -> str | None:
    """What tells one state of the keys from another, for reports; None where auth is off.

    It is made of the salts alone, which are drawn anew with each key and say nothing about it.
    """
    try:
        entries = read_keys(state_dir)
    except ConfigInvalid:
        return "damaged"
    salts = " ".join(entry["salt"] for entry in entries)
    return hashlib.sha256(salts.encode()).hexdigest()[:16] if entries else None


def check_keys_are(state_dir: str | Path, expected: list[dict[str, Any]]) -> None:
    """Raise StalePlan unless exactly these entries are kept."""
    if read_keys(state_dir) != expected:
        raise StalePlan("the API key was changed since", hint="what has changed since is not overwritten")


def exchange_keys(state_dir: str | Path, expected: list[dict[str, Any]], entries: list[dict[str, Any]]) -> None:
    """Keep other entries in the place of the expected ones; none turns auth off. Raises StalePlan where others are."""
    path = keys_file(state_dir)
    with locked(path):
        check_keys_are(state_dir, expected)
        if entries:
            write_atomically(path, json.dumps({"format_version": "1.0", "keys": entries}).encode() + b"\n", mode=0o600)
        else:
            path.unlink(missing_ok=True)


def key_name(state_dir: str | Path, presented: str) -> str | None:
    """A short name of the kept entry that the key fits, for the ledger; it says nothing about the key."""
    for entry in read_keys(state_dir):
        if hmac.compare_digest(_digest(bytes.fromhex(entry["salt"]), presented), entry["sha256"]):
            return str(entry["salt"])[:8]
    return None


def key_is_required(state_dir: str | Path) -> bool:
    """Whether requests need a key. Raises ConfigInvalid for a damaged file."""
    return bool(read_keys(state_dir))


def key_is_valid(state_dir: str | Path, presented: str) -> bool:
    """Whether the key is one of those kept, in a time that does not tell how much of it is right."""
    valid = False
    for entry in read_keys(state_dir):
        digest = _digest(bytes.fromhex(entry["salt"]), presented)
        valid |= hmac.compare_digest(digest, entry["sha256"])
    return valid


def _digest(salt: bytes, key: str) -> str:
    return hashlib.sha256(salt + key.encode("utf-8", "surrogateescape")).hexdigest()
