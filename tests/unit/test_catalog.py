from __future__ import annotations

import json
import os
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from fixtures.gguf_bytes import gguf, model, split_part, write
from localllm.errors import AmbiguousName, ModelLoadFailed, ModelNotFound, Unsupported
from localllm.runtime.models.catalog import Catalog, require_loadable, scan
from localllm.runtime.models.known import known_models
from localllm.runtime.models.splits import sibling_parts


def ids(catalog: Catalog) -> list[str]:
    return [entry.id for entry in catalog.entries]


def test_an_entry_tells_what_the_header_says(tmp_path: Path) -> None:
    write(tmp_path, {"alpha.gguf": model(general__name="Alpha", general__file_type=2)})
    (entry,) = scan(tmp_path).entries

    assert (entry.id, entry.relative_path, entry.kind, entry.valid) == ("alpha", "alpha.gguf", "model", True)
    assert (entry.architecture, entry.name, entry.context_length) == ("llama", "Alpha", 2048)
    assert (entry.quantization, entry.parameter_count) == ("Q4_0", 32)
    assert entry.parts == (str(tmp_path / "alpha.gguf"),)


def test_a_missing_folder_is_an_empty_catalog_and_a_warning(tmp_path: Path) -> None:
    catalog = scan(tmp_path / "gone")

    assert catalog.entries == ()
    assert catalog.warnings == ("the models folder does not exist",)
    with pytest.raises(ModelNotFound) as caught:
        catalog.resolve("alpha")
    assert "models pull" in str(caught.value.hint)


class TestNames:
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Catalog:
        write(tmp_path, {"alpha.gguf": model(), "sub/Beta.gguf": model()})
        return scan(tmp_path, aliases={"nick": "alpha", "lost": "gone", "beta": "alpha", "second": "nick"})

    @pytest.mark.parametrize(
        ("name", "model_id"),
        [
            ("alpha", "alpha"),
            ("alpha.gguf", "alpha"),
            ("ALPHA", "alpha"),
            ("Alpha.GGUF", "alpha"),
            ("nick", "alpha"),
            ("NICK", "alpha"),
            ("Beta", "Beta"),
            ("sub/Beta", "Beta"),
            ("sub/beta.gguf", "Beta"),
            ("beta", "alpha"),
        ],
    )
    def test_a_name_means_an_id_then_an_alias_then_a_path_then_any_case(
        self, catalog: Catalog, name: str, model_id: str
    ) -> None:
        assert catalog.resolve(name).id == model_id

    @pytest.mark.parametrize(
        "name", ["", "gamma", "alp", "../alpha", "./alpha", "/alpha", "alpha/", "sub/../alpha", "sub/alpha", "\0"]
    )
    def test_an_unknown_name_or_a_path_is_not_found_and_says_what_exists(self, catalog: Catalog, name: str) -> None:
        with pytest.raises(ModelNotFound) as caught:
            catalog.resolve(name)

        assert caught.value.data["available"] == ["alpha", "Beta"]

    def test_the_files_own_path_is_no_name_either(self, catalog: Catalog) -> None:
        with pytest.raises(ModelNotFound):
            catalog.resolve(catalog.entries[0].path)

    def test_a_near_miss_gets_a_hint(self, catalog: Catalog) -> None:
        with pytest.raises(ModelNotFound) as caught:
            catalog.resolve("alhpa")

        assert caught.value.hint == "did you mean `alpha`?"

    def test_an_alias_whose_model_is_gone_says_so_and_serves_no_other(self, catalog: Catalog) -> None:
        with pytest.raises(ModelNotFound) as caught:
            catalog.resolve("lost")

        assert "alias of `gone`" in str(caught.value.hint)

    def test_an_alias_of_an_alias_is_not_followed(self, catalog: Catalog) -> None:
        with pytest.raises(ModelNotFound):
            catalog.resolve("second")

    def test_entries_list_their_aliases(self, catalog: Catalog) -> None:
        assert {entry.id: entry.aliases for entry in catalog.entries} == {"alpha": ("beta", "nick"), "Beta": ()}

    def test_no_id_holds_an_absolute_path(self, catalog: Catalog) -> None:
        assert not any(entry.id.startswith("/") or catalog.models_dir in entry.id for entry in catalog.entries)


def test_case_that_fits_two_files_is_ambiguous_unless_one_fits_exactly(tmp_path: Path) -> None:
    catalog = scan(write(tmp_path, {"Big.gguf": model(), "BIG.gguf": model()}))

    assert catalog.resolve("BIG").id == "BIG"
    with pytest.raises(AmbiguousName) as caught:
        catalog.resolve("big")
    assert caught.value.data["candidates"] == ["BIG", "Big"]


def test_the_small_models_short_name_is_an_alias_once_it_is_there(tmp_path: Path) -> None:
    known = known_models()["smollm2-135m"]
    with pytest.raises(ModelNotFound) as caught:
        scan(tmp_path).resolve("smollm2-135m")
    assert "localllm models pull smollm2-135m" in str(caught.value.hint)
    write(tmp_path, {known.file: model()})
    entry = scan(tmp_path).resolve("smollm2-135m")

    assert (entry.id, entry.aliases) == (known.model_id, ("smollm2-135m",))


class TestSplitSets:
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Catalog:
        files = {f"big-{number:05d}-of-00003.gguf": split_part(number, 3) for number in (1, 2, 3)}
        files |= {f"holey-{number:05d}-of-00003.gguf": split_part(number, 3) for number in (1, 3)}
        files |= {"tail-00002-of-00002.gguf": split_part(2, 2)}
        files |= {"one-00001-of-00001.gguf": model(), "best-of-breed.gguf": model()}
        files |= {"x-00004-of-00003.gguf": split_part(3, 3)}
        return scan(write(tmp_path, files))

    def test_a_whole_set_is_one_entry_of_its_summed_size(self, catalog: Catalog) -> None:
        entry = catalog.resolve("big")

        assert (entry.id, entry.valid, len(entry.parts)) == ("big-00001-of-00003", True, 3)
        assert entry.size_bytes == sum(Path(part).stat().st_size for part in entry.parts)
        assert entry.parameter_count == 96

    @pytest.mark.parametrize("name", ["big-00002-of-00003", "big-00003-of-00003.gguf", "BIG-00003-OF-00003"])
    def test_naming_any_part_means_the_first(self, catalog: Catalog, name: str) -> None:
        assert catalog.resolve(name).path.endswith("/big-00001-of-00003.gguf")

    def test_a_missing_part_is_named_and_the_set_is_not_loadable(self, catalog: Catalog) -> None:
        entry = catalog.resolve("holey")

        assert entry.reason == "is incomplete: `holey-00002-of-00003.gguf` is missing"
        with pytest.raises(ModelLoadFailed, match="holey-00002-of-00003"):
            require_loadable(entry)

    def test_a_set_without_its_first_part_keeps_the_first_parts_id(self, catalog: Catalog) -> None:
        entry = catalog.resolve("tail-00002-of-00002")

        assert (entry.id, entry.valid) == ("tail-00001-of-00002", False)

    def test_one_of_one_and_a_hyphen_name_are_ordinary(self, catalog: Catalog) -> None:
        assert catalog.resolve("one-00001-of-00001").loadable
        assert catalog.resolve("best-of-breed").loadable

    def test_an_impossible_part_number_is_invalid(self, catalog: Catalog) -> None:
        assert "part 4 of 3" in str(catalog.resolve("x-00004-of-00003").reason)

    def test_a_broken_part_makes_the_set_invalid(self, tmp_path: Path) -> None:
        files = {"s-00001-of-00002.gguf": split_part(1, 2), "s-00002-of-00002.gguf": split_part(2, 2)[:-1]}
        (entry,) = scan(write(tmp_path, files)).entries

        assert "part 2 of 2, `s-00002-of-00002.gguf`, is truncated" in str(entry.reason)

    def test_parts_that_disagree_with_their_names_are_invalid(self, tmp_path: Path) -> None:
        files = {"s-00001-of-00002.gguf": split_part(2, 2), "s-00002-of-00002.gguf": split_part(1, 2)}
        (entry,) = scan(write(tmp_path, files)).entries

        assert "says it is part 2 of 2" in str(entry.reason)

    def test_a_part_under_an_ordinary_name_is_invalid(self, tmp_path: Path) -> None:
        (entry,) = scan(write(tmp_path, {"renamed.gguf": split_part(1, 3)})).entries

        assert "part 1 of a split set of 3" in str(entry.reason)


def test_broken_files_are_listed_with_a_reason_and_the_scan_goes_on(tmp_path: Path) -> None:
    whole = model()
    files = {"empty.gguf": b"", "page.gguf": b"<!doctype html>", "noise.gguf": os.urandom(4096), "good.gguf": whole}
    files |= {f"cut{size}.gguf": whole[:size] for size in (4, 24, len(whole) // 2, len(whole) - 1)}
    files |= {"m.gguf.part": whole, "notes.txt": b"", "._good.gguf": b"\0\5\x16\7"}
    catalog = scan(write(tmp_path, files))

    assert len(catalog.entries) == 8
    assert [entry.id for entry in catalog.loadable] == ["good"]
    assert all(entry.reason for entry in catalog.entries if entry.id != "good")
    for entry in catalog.entries:
        if entry.id != "good":
            with pytest.raises(ModelLoadFailed) as caught:
                require_loadable(entry)
            assert str(entry.reason) in caught.value.message


def test_a_version_llama_cpp_does_not_read_any_more_is_invalid(tmp_path: Path) -> None:
    (entry,) = scan(write(tmp_path, {"old.gguf": gguf({"general.architecture": "llama"}, version=1)})).entries

    assert "version 1" in str(entry.reason)


def test_only_models_are_loadable_whatever_the_files_are_called(tmp_path: Path) -> None:
    files = {
        "chat.gguf": model(),
        "mmproj-F16.gguf": gguf({"general.architecture": "clip"}),
        "renamed.gguf": gguf({"general.architecture": "clip", "general.type": "mmproj"}),
        "lora.gguf": gguf({"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}),
        "vocab.gguf": gguf({"general.architecture": "llama"}, ()),
        "mmproj-not.gguf": model(),
    }
    catalog = scan(write(tmp_path, files))

    assert {entry.id: entry.kind for entry in catalog.entries} == {
        "chat": "model",
        "mmproj-F16": "projector",
        "renamed": "projector",
        "lora": "adapter",
        "vocab": "vocabulary",
        "mmproj-not": "model",
    }
    assert sorted(entry.id for entry in catalog.loadable) == ["chat", "mmproj-not"]
    for name in ("mmproj-F16", "renamed", "lora", "vocab"):
        with pytest.raises(Unsupported, match=name):
            require_loadable(catalog.resolve(name))
    require_loadable(catalog.resolve("chat"))


def test_a_rescan_forgets_deleted_files_and_reads_changed_ones_anew(tmp_path: Path) -> None:
    write(tmp_path, {"a.gguf": model(), "b.gguf": model(), "c.gguf": model()})
    first = scan(tmp_path)
    (tmp_path / "a.gguf").unlink()
    (tmp_path / "b.gguf").write_bytes(b"<html>")
    second = scan(tmp_path, previous=first)

    assert [(entry.id, entry.valid) for entry in second.entries] == [("b", False), ("c", True)]
    assert second.files[str(tmp_path / "c.gguf")] is first.files[str(tmp_path / "c.gguf")]


class TestLinksAndFolders:
    def test_files_are_found_at_every_depth_and_through_links(self, tmp_path: Path) -> None:
        outside = write(tmp_path / "outside", {"far.gguf": model(), "deep/er.gguf": model()})
        models = write(tmp_path / "models", {"zero.gguf": model(), "a/one.gguf": model(), "b/c/d/e/four.gguf": model()})
        (models / "far.gguf").symlink_to(outside / "far.gguf")
        (models / "more").symlink_to(outside / "deep")
        (models / "M.GGUF").write_bytes(model())

        assert sorted(ids(scan(models))) == ["M", "er", "far", "four", "one", "zero"]

    def test_loops_end(self, tmp_path: Path) -> None:
        models = write(tmp_path / "models", {"d/a.gguf": model(), "b.gguf": model()})
        (models / "d" / "self").symlink_to("..")
        (models / "d" / "here").symlink_to(".")
        (models / "round").symlink_to("round")

        catalog = scan(models)
        assert ids(catalog) == ["b", "a"]
        assert len(catalog.warnings) == 1
        assert "round" in catalog.warnings[0]

    def test_a_dangling_link_is_a_warning_and_hides_nothing(self, tmp_path: Path) -> None:
        models = write(tmp_path / "models", {"a.gguf": model()})
        (models / "gone.gguf").symlink_to(tmp_path / "nowhere.gguf")
        catalog = scan(models)

        assert ids(catalog) == ["a"]
        assert catalog.warnings == ("`gone.gguf` is a dangling link",)

    def test_a_pipe_named_like_a_model_is_a_warning_and_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.gguf")

        assert scan(tmp_path).warnings == ("`pipe.gguf` is not a regular file",)

    def test_two_names_of_one_file_are_shown_as_such_and_are_not_ambiguous(self, tmp_path: Path) -> None:
        models = write(tmp_path / "models", {"real/m.gguf": model()})
        (models / "link").mkdir()
        (models / "link" / "m.gguf").symlink_to("../real/m.gguf")
        (models / "other.gguf").symlink_to("real/m.gguf")
        catalog = scan(models)

        assert {entry.id: entry.duplicate_of for entry in catalog.entries} == {
            "real/m": None,
            "link/m": "real/m",
            "other": "real/m",
        }
        assert catalog.resolve("m").id == "real/m"
        assert catalog.resolve("other").id == "other"

    def test_equal_names_get_their_folders_and_the_short_name_is_ambiguous(self, tmp_path: Path) -> None:
        catalog = scan(write(tmp_path, {"a/m.gguf": model(), "b/m.gguf": model(), "c/n.gguf": model()}))

        assert ids(catalog) == ["a/m", "b/m", "n"]
        with pytest.raises(AmbiguousName) as caught:
            catalog.resolve("m")
        assert caught.value.data["candidates"] == ["a/m", "b/m"]
        assert catalog.resolve("b/m.gguf").path == str(tmp_path / "b" / "m.gguf")

    def test_names_that_differ_in_the_suffixs_case_alone_stay_apart(self, tmp_path: Path) -> None:
        catalog = scan(write(tmp_path, {"m.GGUF": model(), "m.gguf": model()}))

        assert len(set(ids(catalog))) == 2
        assert catalog.resolve("m.gguf").path.endswith("m.gguf")

    def test_two_scans_agree(self, tmp_path: Path) -> None:
        write(tmp_path, {f"{folder}/{name}.gguf": model() for folder in "cab" for name in ("Z", "é", "a")})

        assert scan(tmp_path).entries == scan(tmp_path).entries


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that an unprivileged user can enter, wherever the tests keep theirs."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Not root, whom no permission stops."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_unreadable_folders_and_files_are_told_and_hide_nothing(
    public_folder: Path, request: pytest.FixtureRequest
) -> None:
    write(public_folder, {"a.gguf": model(), "shut/b.gguf": model(), "locked.gguf": model()})
    (public_folder / "a.gguf").chmod(0o644)
    (public_folder / "locked.gguf").chmod(0)
    (public_folder / "shut").chmod(0)
    request.getfixturevalue("unprivileged")
    catalog = scan(public_folder)

    assert [(entry.id, entry.valid) for entry in catalog.entries] == [("a", True), ("locked", False)]
    assert catalog.entries[1].reason == "cannot be opened: permission denied"
    assert catalog.warnings == ("the folder `shut` cannot be read: permission denied",)


class TestOddNames:
    ODD = "qwen tiny ü (v1) 'x' #1%20"

    def test_spaces_accents_and_signs_survive_json_and_urls(self, tmp_path: Path) -> None:
        catalog = scan(write(tmp_path / "Мои модели", {f"{self.ODD}.gguf": model()}))
        (entry,) = catalog.entries

        assert entry.id == self.ODD
        assert json.loads(json.dumps(entry.id)) == entry.id
        assert catalog.resolve(unquote(quote(entry.id, safe=""))) is entry

    def test_both_compositions_of_accents_find_the_file(self, tmp_path: Path) -> None:
        composed, split = (unicodedata.normalize(form, "modèle-ü") for form in ("NFC", "NFD"))
        catalog = scan(write(tmp_path, {f"{split}.gguf": model()}))

        assert catalog.resolve(composed) is catalog.resolve(split)

    def test_both_compositions_side_by_side_stay_apart(self, tmp_path: Path) -> None:
        composed, split = (unicodedata.normalize(form, "modèle") for form in ("NFC", "NFD"))
        catalog = scan(write(tmp_path, {f"{composed}.gguf": model(), f"{split}.gguf": model()}))

        assert len(catalog.entries) == 2
        assert catalog.resolve(composed).id == composed
        assert catalog.resolve(split).id == split

    @pytest.mark.skipif(os.uname().sysname == "Darwin", reason="macOS file systems refuse such names")
    def test_an_undecodable_byte_is_escaped_and_the_model_usable(self, tmp_path: Path) -> None:
        path = os.fsencode(tmp_path) + b"/caf\xff.gguf"
        with open(path, "wb") as file:
            file.write(model())
        catalog = scan(tmp_path)
        (entry,) = catalog.entries

        assert (entry.id, entry.valid, entry.relative_path) == ("caf\\xff", True, "caf\\xff.gguf")
        assert entry.id.encode()
        assert os.fsencode(catalog.resolve("caf\\xff").path) == path

    def test_control_characters_are_escaped(self, tmp_path: Path) -> None:
        catalog = scan(write(tmp_path, {"a\n\x1b[31mb.gguf": model()}))

        assert ids(catalog) == ["a\\x0a\\x1b[31mb"]


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/m/big-00001-of-00002.gguf", ("/m/big-00001-of-00002.gguf", "/m/big-00002-of-00002.gguf")),
        ("big-00001-of-00001.GGUF", ("big-00001-of-00001.GGUF",)),
        ("/m/big-00002-of-00002.gguf", ("/m/big-00002-of-00002.gguf",)),
        ("/m/plain.gguf", ("/m/plain.gguf",)),
        ("/m/odd", ("/m/odd",)),
    ],
)
def test_the_parts_of_a_set_follow_from_the_first_ones_name(path: str, parts: tuple[str, ...]) -> None:
    assert sibling_parts(path) == parts
