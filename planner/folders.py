"""The user's folders for data, state and configuration, as platformdirs gives them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, Literal

NAME: Final = "localllm"
Kind = Literal["data", "state", "config"]
_BELOW_HOME: Final[dict[Kind, str]] = {"data": ".local/share", "state": ".local/state", "config": ".config"}


def user_folder(kind: Kind) -> Path:
    """The folder of this user and program; nothing is created.

    On Linux two environment variables decide, and importing platformdirs to read them would take longer than the
    rest of the settings; it is asked elsewhere, and where neither variable holds a whole path.
    """
    if sys.platform == "linux":
        chosen, home = os.environ.get(f"XDG_{kind.upper()}_HOME", ""), os.environ.get("HOME", "")
        if os.path.isabs(chosen):
            return Path(chosen, NAME)
        if os.path.isabs(home):
            return Path(home, _BELOW_HOME[kind], NAME)
    import platformdirs

    folder = {
        "data": platformdirs.user_data_dir,
        "state": platformdirs.user_state_dir,
        "config": platformdirs.user_config_dir,
    }[kind]
    return Path(folder(NAME, appauthor=False))
