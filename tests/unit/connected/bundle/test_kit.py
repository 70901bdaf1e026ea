"""The kit: its pins, what apt is asked for, which parts go in, and the tests that its programs have to pass."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deployer.cli.laptop import pack as pack_cli
from deployer.connected.bundle import kit
from deployer.connected.bundle.about import sbom
from deployer.connected.bundle.about.packages import PackageInventory, System
from deployer.connected.bundle.kit import age, charliecloud, fetch, recipe, squashfs, udocker
from deployer.connected.bundle.kit.toolchain import Toolchain
from deployer.connected.image.definition.settings import BuildSettings
from deployer.connected.rootfs.entries import InMemory
from deployer.connected.site_profile.profile import Profile, load
from deployer.contract.base.errors import IntegrityError, JobFailed, MissingTool, TransferError
from deployer.contract.elf.machines import SUPPORTED
from deployer.system import terminal
from tests import running

PINS = udocker.RECIPE.pins()


def test_apt_is_asked_for_the_pinned_versions_at_the_machine_s_own_mirror(tmp_path: Path) -> None:
    proot, talloc = PINS["proot"], PINS["talloc"]
    argv = fetch.command(
        [proot], tmp_path / "a b", BuildSettings(apt={"Acquire::http::Proxy": "p"}), [talloc], "x86_64"
    )
    text = "\n".join(argv)
    assert "://" not in text
    assert f"source --download-only --tar-only {proot['package']}" in text
    assert f"cp *.tar.* '{tmp_path}/a b' && apt-get --quiet=2 download {talloc['package']} && cp *.deb '" in text
    assert 'echo "deb $mirror bookworm main"; echo "deb-src $mirror sid main"' in text
    assert '--aptopt=Acquire::http::Proxy "p"' in argv
    assert argv[-1] == talloc["suite"]
    foreign = fetch.command([proot], tmp_path, BuildSettings(), [talloc], "aarch64")
    assert {"--architectures=arm64", "--skip=check/qemu"} <= set(foreign)
    with_mirror = fetch.command([proot], tmp_path, BuildSettings(sources="deb file:/mirror x main\n"), [], "x86_64")
    assert any("deb file:/mirror x main" in word for word in with_mirror)


def test_sources_of_one_suite_need_no_packages(tmp_path: Path) -> None:
    pins = squashfs.RECIPE.pins()
    argv = fetch.command(list(pins.values()), tmp_path, BuildSettings(), [], "x86_64")
    assert "--architectures=amd64" in argv
    assert " ".join(pin["package"] for pin in pins.values()) in "\n".join(argv)
    assert "*.deb" not in "\n".join(argv)
    assert {pin["suite"] for pin in pins.values()} == {argv[-1]}


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="another version"):
        fetch.checked(udocker.RECIPE, tmp_path / "x", "0" * 64)
    (tmp_path / "x").write_text("other")
    with pytest.raises(IntegrityError, match="not the pinned"):
        fetch.checked(udocker.RECIPE, tmp_path / "x", "0" * 64)


@pytest.mark.parametrize("name", kit.PARTS)
def test_a_processor_without_a_kit_gets_one_line(name: str) -> None:
    with pytest.raises(MissingTool, match=f"the kit's {name} does not exist for riscv64"):
        kit.members(name, "riscv64", print)


@pytest.mark.parametrize("made", [charliecloud.RECIPE, udocker.RECIPE])
def test_each_package_is_pinned_for_each_processor(made: recipe.Recipe) -> None:
    for pin in made.pins().values():
        if "files" in pin:
            files = pin["files"]
            assert len({files[machine]["sha256"] for machine in SUPPORTED}) == len(SUPPORTED)
            assert files["aarch64"]["file"] == files["x86_64"]["file"].replace("_amd64.deb", "_arm64.deb")


def _laptop(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "x", "6", "#1", machine)))


@pytest.mark.parametrize(
    ("laptop", "site", "prefix", "packages"),
    [
        ("x86_64", "x86_64", "", "gcc libc6-dev make"),
        ("aarch64", "aarch64", "", "gcc libc6-dev make"),
        ("x86_64", "aarch64", "aarch64-linux-gnu-", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross make"),
        ("aarch64", "x86_64", "x86_64-linux-gnu-", "gcc-x86-64-linux-gnu libc6-dev-amd64-cross make"),
    ],
)
def test_the_site_decides_and_a_foreign_one_gets_a_cross_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, laptop: str, site: str, prefix: str, packages: str
) -> None:
    _laptop(monkeypatch, laptop)
    for name in ("gcc", "strip"):
        running.program(
            tmp_path, prefix + name, "#!/bin/sh\necho '#define __GLIBC__ 2'\necho '#define __GLIBC_MINOR__ 36'\n"
        )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tools = udocker.RECIPE.tools(site)
    assert tools.prefix == prefix
    assert f"for {site}. Compiled" in (text := udocker.RECIPE.readme(site))
    assert "glibc 2.36" in text
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    for need in (tools.names, lambda: tools.strip(tmp_path / "a", tmp_path / "b")):
        with pytest.raises(MissingTool, match=f"cannot start {prefix}") as caught:
            need()
        assert f"apt-get install {packages}" in caught.value.hint


#: The beginning of a program for each processor.
PROGRAM = {
    name: b"\x7fELF\2\1\1" + bytes(9) + b"\2\0" + bytes([number, 0])
    for name, number in (("x86_64", 62), ("aarch64", 183))
}


def test_a_program_that_does_not_run_here_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ELF file that no kernel starts stands for one of a processor without emulation."""
    _laptop(monkeypatch, "x86_64")
    for name in ("ld-linux-aarch64.so.1", "proot", "mksquashfs"):
        (tmp_path / name).write_bytes(PROGRAM["aarch64"])
        (tmp_path / name).chmod(0o755)
    tools = udocker.RECIPE.tools("aarch64")
    for what, test in (
        ("ch-run does not start", lambda: charliecloud.check(tmp_path, "0.31", "aarch64")),
        ("proot does not start", lambda: udocker.check_start(tmp_path / "proot", tools)),
        (
            "mksquashfs fails its test",
            lambda: squashfs.check(tmp_path / "mksquashfs", tmp_path, tmp_path, tools.untested),
        ),
    ):
        with pytest.raises(JobFailed, match=what) as caught:
            test()
        assert "qemu-user-static binfmt-support" in caught.value.hint
    assert "qemu" not in udocker.RECIPE.tools("x86_64").untested


def test_a_proot_that_cannot_be_tested_here_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _laptop(monkeypatch, "x86_64")
    running.program(tmp_path, "proot", "#!/bin/sh\n")
    tested = udocker.check_start(tmp_path / "proot", udocker.RECIPE.tools("aarch64"))
    assert "/deployer/canary on each node" in tested
    monkeypatch.setattr(Toolchain, "libc", lambda _: "glibc 2.36")
    assert tested in udocker.RECIPE.readme("aarch64", "make it", tested)


def test_the_readmes_name_licences_and_sources() -> None:
    for made, words in (
        (udocker.RECIPE, ("Apache-2.0", "GPL-2.0-or-later", "LGPL-3.0-or-later", "proot_5.4.0.orig.tar.gz")),
        (squashfs.RECIPE, ("GPL-2.0-or-later", "Zlib", "BSD-3-Clause", "squashfs-tools_4.5.1.orig.tar", "zlib_1.2.13")),
        (charliecloud.RECIPE, [pin["licence"] for pin in charliecloud.RECIPE.pins().values()]),
        (age.RECIPE, ("1.1.1-1", "golang-1.19-go=1.19.8-2", "make it")),
        (charliecloud.RECIPE, ("lzo2_2.10.orig.tar.gz", "libc6=2.36", "source package glibc")),
    ):
        text = made.readme(os.uname().machine, "make it")
        for word in (*words, *(["make it"] if made.compiled else [])):
            assert word in text


def test_the_sbom_names_what_was_compiled() -> None:
    names = ("proot", "mksquashfs", "README.udocker")
    found = list(kit.packages({f"deployer/kit/{name}": InMemory(b"x") for name in names}))
    assert [(package.name, package.version, package.licences) for package in found] == [
        ("proot", "5.4.0", ("GPL-2.0-or-later",)),
        ("squashfs-tools", "4.5.1", ("GPL-2.0-or-later",)),
    ]
    assert b'"purl":"pkg:generic/proot@5.4.0"' in b"".join(
        sbom.make("n", "1", PackageInventory(System(), ()), found, [])
    )
    assert list(kit.packages({})) == []


def test_the_sbom_names_the_packages_of_debian_with_its_own_release() -> None:
    """The image may be of another distribution."""
    names = ("ch-run", "libz.so", "run")
    found = list(kit.packages({f"deployer/kit/charliecloud/{name}": InMemory(PROGRAM["aarch64"]) for name in names}))
    assert [(package.name, package.licences) for package in found] == [("charliecloud-runtime", ("Apache-2.0",))]
    document = b"".join(sbom.make("n", "1", PackageInventory(System("alpine", "3"), ()), found, []))
    assert b'"purl":"pkg:deb/debian/charliecloud-runtime@0.31-1?arch=arm64&distro=debian-12"' in document
    whole = list(kit.packages({f"deployer/kit/{name}": InMemory(b"x") for name in charliecloud.PROGRAMS}))
    assert {package.name for package in whole} == set(charliecloud.RECIPE.pins()) - {"lzo2-source"}


#: The loader lists where each library is; the script that starts ch-run prints its version.
LOADER = '#!/bin/sh\n[ "$3" = --list ] && printf "libc.so.6 => %s/libc.so.6 (0x1)\\n" "{}"\n'


@pytest.mark.parametrize(
    ("library", "version", "said"),
    [
        ("$2", "0.31", ""),
        ("/usr/lib", "0.31", "takes libc.so.6 from this machine"),
        ("$2", "0.38", "has the version 0.38, not 0.31"),
        ("$2", "none; exit 127", "does not start"),
    ],
)
def test_a_ch_run_has_to_pass_a_test(tmp_path: Path, library: str, version: str, said: str) -> None:
    for name, text in (("ld-linux-x86-64.so.2", LOADER.format(library)), ("run", f"#!/bin/sh\necho {version}\n")):
        running.program(tmp_path, name, text)
    if not said:
        charliecloud.check(tmp_path, "0.31", "x86_64")
        return
    with pytest.raises(JobFailed, match=said):
        charliecloud.check(tmp_path, "0.31", "x86_64")


def _fake(folder: Path, last: str) -> Path:
    """Return a proot that forgets all its options and does what ``last`` says."""
    path = folder / "proot"
    path.write_text(f'#!/bin/sh\nroot=$4\nwhile [ "$1" != -w ]; do shift; done\nshift 2\n{last}\n')
    path.chmod(0o755)
    return path


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_proot_that_shows_the_host_s_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="fails the test of its root: it sees the host's root"):
        udocker.check_root(_fake(tmp_path, 'exec "$root$1" "$2"'), tmp_path)
    with pytest.raises(JobFailed, match=r"fails the test of its root: ptrace"):
        udocker.check_root(_fake(tmp_path, "echo 'ptrace: not permitted' >&2; exit 1"), tmp_path)
    udocker.check_root(_fake(tmp_path, 'exec "$root$1" "$root$2"'), tmp_path)


# --- which parts go in ---

SQUASHFS = running.PLAN._replace(
    start_options=[running.START_OPTION._replace(runtime="charliecloud", staging="squashfs")]
)
UDOCKER = running.PLAN._replace(start_options=[running.START_OPTION._replace(runtime="udocker")])
CARRIED = running.PLAN._replace(start_options=[running.START_OPTION._replace(runtime="charliecloud-kit")])
FORBIDDEN = CARRIED._replace(against={"charliecloud-kit": "the nodes have no user namespaces"})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the parts that were made, by nothing."""
    names: list[str] = []

    def members(name: str, machine: str, _: Callable[[str], None]) -> dict[str, Path]:
        names.append(name if machine == "x86_64" else f"{name} for {machine}")
        return {}

    monkeypatch.setattr(kit, "members", members)
    return names


def lab(mksquashfs: bool | None, architecture: str | None = None) -> Profile:
    profile = load("lab").model_copy(update={"architecture": architecture})
    return profile.model_copy(update={"login": profile.login.model_copy(update={"mksquashfs": mksquashfs})})


@pytest.mark.parametrize(
    ("sites", "asked", "expected"),
    [
        ([], [], []),
        ([(lab(None), running.PLAN)], [], []),
        ([(lab(None), SQUASHFS)], [], ["squashfs-tools"]),
        ([(lab(False), SQUASHFS)], [], ["squashfs-tools"]),
        ([(lab(True), SQUASHFS)], [], []),
        ([(lab(True), SQUASHFS), (lab(None), SQUASHFS)], [], ["squashfs-tools"]),
        ([(lab(True), SQUASHFS)], ["squashfs-tools"], ["squashfs-tools"]),
        ([], ["squashfs-tools"], ["squashfs-tools"]),
        ([(lab(True), UDOCKER)], [], ["udocker"]),
        ([(lab(False), UDOCKER)], [], ["udocker"]),
        ([(lab(True), CARRIED)], [], ["charliecloud"]),
        ([(lab(True), FORBIDDEN)], [], []),
        ([], ["charliecloud"], ["charliecloud"]),
    ],
)
def test_a_part_goes_in_where_a_site_may_use_it_or_somebody_asks(
    made: list[str], sites: list[tuple[Profile, object]], asked: list[str], expected: list[str]
) -> None:
    kit.carried(asked, sites, "x86_64", print)  # type: ignore[arg-type]
    assert made == expected


@pytest.mark.parametrize("laptop", ["x86_64", "aarch64", "riscv64"])
@pytest.mark.parametrize(
    ("nodes", "image", "expected"),
    [
        (["aarch64"], "aarch64", ["udocker for aarch64"]),
        (["aarch64"], None, ["udocker for aarch64"]),
        ([None], "aarch64", ["udocker for aarch64"]),
        ([None], None, ["udocker"]),
        (["aarch64"], "x86_64", []),
        (["x86_64"], "aarch64", []),
        (["x86_64", "aarch64"], "aarch64", ["udocker for aarch64"]),
        (["ppc64le"], "ppc64le", []),
    ],
)
def test_the_kit_is_for_the_processor_of_the_image_and_its_nodes(
    made: list[str],
    monkeypatch: pytest.MonkeyPatch,
    laptop: str,
    nodes: list[str | None],
    image: str | None,
    expected: list[str],
) -> None:
    _laptop(monkeypatch, laptop)
    kit.carried([], [(lab(True, node), UDOCKER) for node in nodes], image, print)
    assert made == expected


def test_what_a_site_can_do_without_is_left_out_where_it_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def members(name: str, machine: str, _: Callable[[str], None]) -> dict[str, Path]:
        raise MissingTool(f"cannot start gcc for {name}", "apt-get install gcc")

    monkeypatch.setattr(kit, "members", members)
    said: list[str] = []
    with terminal.manners(True, False):  # `pack --quiet` warns too
        assert kit.carried([], [(lab(None), SQUASHFS)], None, said.append) == {}
    assert said == []
    line = capsys.readouterr().err
    assert line.startswith("deployer: warning: ")
    assert (
        "cannot start gcc for squashfs-tools: the bundle is packed without squashfs-tools (apt-get install gcc)" in line
    )
    for asked, plan in ((["squashfs-tools"], SQUASHFS), ([], UDOCKER), ([], CARRIED)):
        with pytest.raises(MissingTool):
            kit.carried(asked, [(lab(None), plan)], None, print)
    # Where the site's own ch-run may do.
    either = CARRIED._replace(start_options=[running.START_OPTION, *CARRIED.start_options])
    assert kit.carried([], [(lab(None), either)], None, said.append) == {}
    with pytest.raises(MissingTool):
        kit.carried([], [(lab(None), either._replace(against={"charliecloud": "too old"}))], None, print)


def test_the_command_line_knows_the_parts() -> None:
    assert set(pack_cli._PARTS) == set(kit.PARTS)


# --- what is made ---


@pytest.mark.thorough
def test_a_part_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(folder: Path, *_: object) -> None:
        made.append(folder)
        (folder / "proot").write_bytes(PROGRAM["aarch64"])

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(recipe.Recipe, "key", lambda *_: "key")
    monkeypatch.setattr(kit, "PARTS", {"udocker": kit.PARTS["udocker"]._replace(make=make)})
    with pytest.raises(IntegrityError, match="the kit's proot is for aarch64, not for x86_64"):
        kit.members("udocker", "x86_64", print)
    made.clear()
    first, second = kit.members("udocker", "aarch64", print), kit.members("udocker", "aarch64", print)
    assert first == second == {"deployer/kit/proot": tmp_path / "deployer" / "kit" / "key" / "proot"}
    assert len(made) == 1
    assert sorted(path.name for path in (tmp_path / "deployer" / "kit").iterdir()) == ["key"]


#: A reader that gives back what the sample has, and a mksquashfs of which none is as it should be.
READER = '#!/bin/sh\nmkdir "$2" && cp "$3.kept" "$2/file"\n'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 1", "fails its test: "),
        ('cp "$1/file" "$2.kept"; echo $$ >"$2"', "two runs on the same folder gave different bytes"),
        ('echo other >"$2.kept"; echo same >"$2"', "a file was changed"),
        ('cp "$1/file" "$2.kept"; echo same >"$2"', ""),
    ],
)
def test_a_mksquashfs_has_to_pass_a_test(tmp_path: Path, body: str, said: str) -> None:
    for name, text in (("mksquashfs", f"#!/bin/sh\n{body}\n"), ("unsquashfs", READER)):
        running.program(tmp_path, name, text)
    if not said:
        return squashfs.check(tmp_path / "mksquashfs", tmp_path / "unsquashfs", tmp_path, "")
    with pytest.raises(JobFailed, match=said):
        squashfs.check(tmp_path / "mksquashfs", tmp_path / "unsquashfs", tmp_path, "")
    return None
