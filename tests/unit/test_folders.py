"""The user's folders are where platformdirs puts them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import platformdirs
import pytest
from localllm.planner.folders import Kind, user_folder


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("chosen", [None, "", "relative/folder", "/chosen/folder/"])
@pytest.mark.parametrize("home", [None, "", "relative", "/home/somebody"])
def test_a_folder_is_where_platformdirs_puts_it(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, chosen: str | None, home: str | None
) -> None:
    for name, value in ((f"XDG_{kind.upper()}_HOME", chosen), ("HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)

    asked = getattr(platformdirs, f"user_{kind}_dir")

    assert user_folder(kind) == Path(asked("localllm", appauthor=False))
