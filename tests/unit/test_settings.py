from pathlib import Path

import pytest
from localllm.errors import ConfigInvalid, NotFound
from localllm.planner.settings import (
    check_value,
    parse_value,
    resolve_settings,
    server_url,
    setting_named,
    settings_table,
)


@pytest.fixture
def config(tmp_path):
    """Write a config file and resolve: `config(text, env={…}, **flags)`."""

    def resolve(text="", env=None, **flags):
        path = tmp_path / "config.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return resolve_settings(flags, env or {}, config_file=path)

    return resolve


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(config):
    text, env = "n_ctx = 100\nn_slots = 2\nport = 9000\n", {"LOCALLLM_N_CTX": "200", "LOCALLLM_OUTPUT": "json"}
    settings = config(text, env, output="text", server=None)

    assert (settings.output, settings.n_ctx, settings.port, settings.log_keep) == ("text", 200, 9000, 3)
    assert settings.origins["output"] == "flag"
    assert settings.origins["n_ctx"] == "env LOCALLLM_N_CTX"
    assert settings.origins["port"] == f"file {settings.config_file}:3"
    assert settings.origins["log_keep"] == "default"


def test_without_a_file_every_setting_has_its_default(tmp_path):
    settings = resolve_settings({}, {}, config_file=tmp_path / "none.toml", must_exist=False)

    assert settings.revision == "none"
    assert settings.server == "http://127.0.0.1:8484"
    assert settings.host == "127.0.0.1"
    assert settings.models_dir.is_absolute()
    assert settings.log_dir == settings.state_dir / "log"
    assert settings.warnings == ()


def test_a_config_file_that_is_asked_for_must_exist(tmp_path):
    with pytest.raises(NotFound, match="there is no config file"):
        resolve_settings({}, {}, config_file=tmp_path / "none.toml")
    with pytest.raises(NotFound, match=r"other\.toml"):
        resolve_settings({}, {"LOCALLLM_CONFIG": str(tmp_path / "other.toml")})


@pytest.mark.parametrize(
    "text, words",
    [
        ("port = '80a'", ":1: `port`: `80a` is not an integer"),
        ("\n\nport = 99999", ":3: `port`: 99999 is greater than the maximum of 65535"),
        ("port = true", ":1: `port`: `True` is not an integer"),
        ("port = 80.5", ":1: `port`: `80.5` is not an integer"),
        ("n_ctx = nan", ":1: `n_ctx`: `nan` is not an integer"),
        ("output = 'yaml'", ":1: `output`: `yaml` is not one of `text`, `json`"),
        ("allowed_hosts = 'a'", ":1: `allowed_hosts`: `a` is not a list of strings"),
        ("allowed_hosts = [1]", ":1: `allowed_hosts`: `1` is not a string"),
        ("[aliases]\ntiny = 5", ":1: `aliases`: `5` is not a string"),
        ("server = 'ftp://x'", ":1: `server`: `ftp://x` is not the URL of a server"),
        ("host = 'a b'", ":1: `host`: `a b` does not match"),
        ("port = 1\nport = 2", ":2: the key is given twice"),
        ("[aliases]\na = 'x'\na = 'y'", ":3: the key is given twice"),
        ("port = 1\nport = 2\n\n# more", ":2:9: the key is given twice"),
        ("port = ", ":1: invalid value"),
        ("port", ":1: expected '=' after a key"),
    ],
)
def test_a_fault_of_the_file_names_the_place_the_key_and_the_value(config, text, words):
    with pytest.raises(ConfigInvalid) as fault:
        config(text)
    assert words in fault.value.message
    assert "config.toml:" in fault.value.message


def test_an_unknown_key_gets_the_nearest_name(config):
    with pytest.raises(ConfigInvalid, match=r"config\.toml:2: there is no setting `n_ctxx`") as fault:
        config("port = 1\nn_ctxx = 1")
    assert fault.value.hint == "did you mean `n_ctx`?"


def test_a_file_in_another_encoding_is_refused_with_its_line(config):
    with pytest.raises(ConfigInvalid, match=r"config\.toml:2: is not UTF-8 \(byte 0xfc\)"):
        config(b"port = 1\nprofile = '\xfc'")
    with pytest.raises(ConfigInvalid, match="is not UTF-8"):
        config("port = 1".encode("utf-16"))


def test_a_byte_order_mark_is_no_fault(config):
    assert config(b"\xef\xbb\xbfport = 9\n").origins["port"].endswith(":1")


@pytest.mark.parametrize("text", [r'models_dir = "C:\new\table"', r'models_dir = "C:\models"'])
def test_backslashes_in_a_path_are_never_turned_into_something_else(config, text):
    with pytest.raises(ConfigInvalid) as fault:
        config(text)
    assert "single quotes" in f"{fault.value.message} {fault.value.hint}"


def test_a_path_in_single_quotes_keeps_its_backslashes(config):
    assert config(r"models_dir = '/data\new'").models_dir == Path(r"/data\new")


def test_folders_are_absolute_and_know_the_home_folder(config, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    settings = config("models_dir = '~/Мои модели'", {"LOCALLLM_STATE_DIR": "state"})

    assert settings.models_dir == Path("/home/someone/Мои модели")
    assert settings.state_dir == Path.cwd() / "state"


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        resolve_settings({}, {}, config_file=tmp_path)


def test_a_wrong_variable_is_named(config):
    with pytest.raises(ConfigInvalid, match="LOCALLLM_PORT: `port`: `http` is not an integer"):
        config(env={"LOCALLLM_PORT": "http"})


def test_an_empty_variable_is_not_set(config):
    assert config(env={"LOCALLLM_PORT": ""}).port == 8484


def test_a_variable_that_looks_misspelt_is_a_warning(config):
    settings = config(env={"LOCALLLM_MODEL_DIR": "/m", "LOCALLLM_VAR_X": "1", "LOCALLLM_TEST_MODELS_DIR": "/m"})

    assert settings.warnings == (
        "the environment variable `LOCALLLM_MODEL_DIR` is not used; did you mean `LOCALLLM_MODELS_DIR`?",
    )


def test_the_api_key_comes_from_the_environment_only_and_is_never_shown(config):
    settings = config(env={"LOCALLLM_API_KEY": "sk-secret"})

    assert settings.api_key == "sk-secret"
    assert settings.shown("api_key") == "***"
    assert "sk-secret" not in repr(settings)
    assert config().shown("api_key") is None
    with pytest.raises(ConfigInvalid, match="is a secret and has no place in a file") as fault:
        config("api_key = 'sk-secret'")
    assert "sk-secret" not in str(fault.value.as_dict())


def test_the_revision_follows_the_content(config):
    assert config("port = 1").revision == config("port = 1").revision
    assert config("port = 1").revision != config("port = 2").revision


@pytest.mark.parametrize(
    "host, port, url",
    [
        ("127.0.0.1", 8484, "http://127.0.0.1:8484"),
        ("0.0.0.0", 9, "http://127.0.0.1:9"),
        ("::", 9, "http://[::1]:9"),
        ("::1", 9, "http://[::1]:9"),
        ("localhost", 0, "http://localhost:8484"),
    ],
)
def test_the_default_server_is_this_machine(host, port, url):
    assert server_url(host, port) == url


def test_the_server_follows_host_and_port_unless_it_is_given(config):
    assert config("port = 9000").server == "http://127.0.0.1:9000"
    assert config("port = 9000", server="box:1").server == "http://box:1"
    assert config(server="https://box/").server == "https://box"


@pytest.mark.parametrize("url", ["http://", "http://a b", "http://u:p@h", "http://h:99999", "h:x", "http://h?q"])
def test_what_is_no_url_of_a_server_is_refused(config, url):
    with pytest.raises(ConfigInvalid, match="is not the URL of a server"):
        config(server=url)


def test_values_are_parsed_from_text_by_their_type():
    table = settings_table()

    assert parse_value(table["port"], "80") == 80
    assert parse_value(table["allowed_hosts"], "a, b,") == ("a", "b")
    assert parse_value(table["aliases"], '{"tiny": "x"}') == {"tiny": "x"}
    assert check_value(table["n_ctx"], 8) == 8
    for text in ("1e3", "0x10", "", "٣", "1_0", "9" * 5000):
        with pytest.raises(ValueError, match="is not an integer"):
            parse_value(table["port"], text)


def test_a_setting_is_found_by_its_name_or_as_an_alias():
    assert setting_named("port").env == "LOCALLLM_PORT"
    assert setting_named("aliases.tiny").name == "aliases"
    with pytest.raises(NotFound) as missing:
        setting_named("prot")
    assert missing.value.hint == "did you mean `port`?"
    with pytest.raises(NotFound):
        setting_named("aliases.")


@pytest.mark.parametrize("name", settings_table())
def test_every_setting_has_help_and_a_default_that_it_would_accept(name):
    setting = settings_table()[name]

    assert len(setting.spec.help) > 10
    if setting.default is not None:
        default = list(setting.default) if isinstance(setting.default, tuple) else setting.default
        assert check_value(setting, default) == setting.default
