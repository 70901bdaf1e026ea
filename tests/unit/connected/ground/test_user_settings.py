"""Settings: an option counts before a variable, a variable before the file; errors name the line."""

import json
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.ground import user_settings
from deployer.connected.ground.user_settings import UserSetting, in_effect
from deployer.contract.base.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for variable in user_settings.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "deployer").mkdir()
    return tmp_path / "deployer"


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [None, "", "# nothing yet\n", "site:\n"])
def test_without_settings_nothing_is_set(folder: Path, text: str | None) -> None:
    if text is not None:
        write(folder, text)
    assert {each.value for each in in_effect().values()} == {None}
    with pytest.raises(UsageError, match="no site is given") as caught:
        user_settings.site(None)
    assert f"set `site:` in {folder}/config.yaml" in caught.value.hint


def test_option_variable_and_file_count_in_this_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder, "# mine\nsite: ssh:login1\nssh_config: ssh/config\n")
    (folder / "ssh").mkdir()
    (folder / "ssh" / "config").write_text("")
    (folder / "other").write_text("")
    found = in_effect()
    assert found["site"] == UserSetting("ssh:login1", f"{path}:2")
    assert found["ssh_config"] == UserSetting(str(folder / "ssh/config"), f"{path}:3")
    assert user_settings.site(None) == "ssh:login1"
    monkeypatch.setenv("DEPLOYER_SITE", "lab")
    monkeypatch.setenv("DEPLOYER_SSH_CONFIG", str(folder / "other"))
    assert in_effect()["site"] == UserSetting("lab", "DEPLOYER_SITE")
    assert user_settings.path("ssh_config", None) == folder / "other"
    assert user_settings.path("ssh_config", Path("given")) == Path("given")
    assert user_settings.site("given") == "given"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("site: lab\nssh-config: x\n", ":2: ssh-config: unknown key"),
        ("site: [lab]\n", ":1: site: "),
        ("site: ''\n", ":1: site: "),
        ("site: lab\n\nkey: none/id\n", ":3: key: file not found: "),
        ("site: lab\nsite: other\n", ":2: site: is given twice"),
        ("key: ~no-such-user/key\n", ":1: key: ~no-such-user/key: this machine has no home folder ~no-such-user"),
        ("- site\n", "is not deployer's settings"),
        ("site: 'a\\tb'\nsite", "config.yaml"),
    ],
)
def test_wrong_settings_are_refused_with_their_line(folder: Path, text: str, said: str) -> None:
    write(folder, text)
    with pytest.raises(UsageError) as caught:
        in_effect()
    assert said in caught.value.message


def test_a_variable_with_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYER_SSH_CONFIG", "/none/config")
    with pytest.raises(UsageError, match="DEPLOYER_SSH_CONFIG: file not found: /none/config"):
        in_effect()
    monkeypatch.setenv("DEPLOYER_SSH_CONFIG", "/none\x1b[2J")
    with pytest.raises(UsageError, match="control character"):
        in_effect()


@pytest.mark.parametrize(
    ("name", "value"), [("KEY", "~no-such-user/key"), ("KEY", "{folder}"), ("CA_BUNDLE", "{folder}")]
)
def test_a_variable_names_a_file_as_the_settings_do(
    name: str, value: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = value.format(folder=folder)
    monkeypatch.setenv(f"DEPLOYER_{name}", value)
    with pytest.raises(UsageError, match=f"DEPLOYER_{name}: "):
        in_effect()
    monkeypatch.delenv(f"DEPLOYER_{name}")
    write(folder, f"{name.lower()}: {value}\n")
    with pytest.raises(UsageError, match=f":1: {name.lower()}: "):
        in_effect()


def test_config_shows_what_is_in_effect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(folder, "site: lab\n")
    assert main(["config"]) == 0
    said = capsys.readouterr().out
    assert f"settings file: {path}" in said
    assert "not set" in said
    assert main(["config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"]["site"] == {"value": "lab", "from": f"{path}:1"}
    assert set(shown["settings"]) == set(user_settings.VARIABLES)


def test_commands_use_the_settings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == UsageError.exit_code
    assert "no site is given" in capsys.readouterr().err
    write(folder, "site: nowhere-known\n")
    for words in (["status"], ["result"], ["deploy", "."], ["check", "b.tar"], ["push", "b.tar"], ["logs", "x"]):
        assert main(words) == UsageError.exit_code
        said = capsys.readouterr().err
        assert "nowhere-known" in said or "there is no bundle.yaml" in said
