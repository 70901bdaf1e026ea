"""The files that the lab renders, and the shape of its site."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

from tests.lab import config
from tests.lab.errors import LabError
from tests.lab.mounts import node_mounts
from tests.lab.network import Interface, parse_links, setup_lines, wire_of, wires
from tests.lab.site import LAPTOP, LOGIN, SWITCH, Site, node_memory_mb, share_out

SITE = Site(compute_nodes=2, host_cpus=(0, 1), memory_mb=4000)


def _settings(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines if not line.startswith(("NodeName", "PartitionName")))


# ---------------------------------------------------------------- site


@pytest.mark.parametrize(
    ("cpus", "nodes", "shares"),
    [
        ((0, 1), 2, [(0,), (1,)]),
        (range(8), 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ((0, 1, 2), 2, [(0,), (1,)]),
        ((0, 1), 3, [(0,), (1,), (0,)]),
        ((4, 6), 2, [(4,), (6,)]),
    ],
)
def test_cores_are_shared_out(cpus: range, nodes: int, shares: list[tuple[int, ...]]) -> None:
    assert share_out(cpus, nodes) == shares


@pytest.mark.parametrize(("total", "nodes", "each"), [(24105, 2, 8000), (8000, 2, 3000), (1000, 4, 500)])
def test_memory_of_a_node(total: int, nodes: int, each: int) -> None:
    assert node_memory_mb(total, nodes) == each


def test_addresses_and_names() -> None:
    assert SITE.all_nodes == (SWITCH, LAPTOP, LOGIN, "cn1", "cn2")
    assert [SITE.inner_address(node) for node in SITE.slurm_nodes] == ["10.99.0.1", "10.99.0.11", "10.99.0.12"]


@pytest.mark.parametrize("count", [0, -1, 65])
def test_impossible_number_of_nodes(count: int) -> None:
    with pytest.raises(LabError, match="compute nodes"):
        Site(compute_nodes=count, host_cpus=(0,), memory_mb=500)


def test_unknown_node_says_which_there_are() -> None:
    with pytest.raises(LabError) as error:
        SITE.require("cn9")
    assert "cn2" in error.value.hint


# ---------------------------------------------------------------- Slurm


def test_slurm_conf_settings() -> None:
    settings = _settings(config.slurm_conf(SITE))
    assert settings["SlurmctldHost"] == "login1(10.99.0.1)"
    assert settings["TaskPlugin"] == "task/affinity"
    assert settings["ProctrackType"] == "proctrack/linuxproc"
    assert settings["SchedulerParameters"].startswith("batch_sched_delay=0")
    assert settings["MpiDefault"] == "pmi2"
    assert settings["TaskProlog"] == config.TASK_PROLOG


def test_slurm_conf_nodes() -> None:
    nodes = [line for line in config.slurm_conf(SITE).splitlines() if line.startswith("NodeName=")]
    assert [line.split()[:3] for line in nodes] == [
        ["NodeName=cn1", "NodeAddr=10.99.0.11", "CPUs=1"],
        ["NodeName=cn2", "NodeAddr=10.99.0.12", "CPUs=1"],
    ]
    assert all("RealMemory=4000" in line for line in nodes)


def test_cgroup_conf_names_a_version_so_that_slurmd_does_not_look_for_one() -> None:
    assert config.cgroup_conf() == "CgroupPlugin=cgroup/v1\n"


def test_slurmd_sees_cores_up_to_the_highest() -> None:
    assert config.slurmd_topology((4, 6)) == "pack:1 core:7 pu:1"


@pytest.mark.parametrize(
    ("cpus", "pinned", "moved"),
    [
        ((1,), "0", "1"),
        ((1,), "1", None),  # --cpu-bind=none: inherited from slurmd, right already
        ((4, 5, 6, 7), "0", "4"),
        ((4, 5, 6, 7), "0-2", "4,5,6"),
        ((4, 5, 6, 7), "1,3", "5,7"),
        ((4, 5, 6, 7), "4-7", None),
    ],
)
def test_task_prolog_moves_what_slurm_pinned(tmp_path: Path, cpus: tuple[int, ...], pinned: str, moved: str) -> None:
    """The real script with a taskset that answers and writes down what it is asked for."""
    fake = tmp_path / "taskset"
    asked = tmp_path / "asked"
    fake.write_text(f'#!/bin/sh\n[ $# = 3 ] && echo "pid 1\'s current affinity list: {pinned}" || echo "$3" >{asked}\n')
    fake.chmod(0o755)
    script = tmp_path / "prolog"
    script.write_text(config.task_prolog(cpus))
    path = f"{tmp_path}:/usr/bin:/bin"
    subprocess.run(["bash", str(script)], check=True, timeout=10, env={"PATH": path}, stdout=subprocess.DEVNULL)
    assert (asked.read_text().strip() if asked.exists() else None) == moved


# ---------------------------------------------------------------- accounts, names, ssh


def test_accounts_keep_system_users_and_hold_one_alice() -> None:
    host = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/a:/bin/sh\nbob:x:2001:2001::/home/b:/bin/sh\n"
    lines = config.accounts("passwd", host).splitlines()
    assert lines == ["root:x:0:0::/root:/bin/sh", "alice:x:2001:2001:Alice:/home/alice:/bin/bash"]


def test_alice_has_no_password_but_is_not_locked() -> None:
    assert config.accounts("shadow", "root:!:1::::::\n").splitlines()[1].startswith("alice:*:")


def test_hosts() -> None:
    expected = "127.0.0.1 localhost\n10.99.0.1 login1\n10.99.0.11 cn1\n10.99.0.12 cn2\n"
    assert config.hosts(SITE) == expected


def test_sshd_takes_alices_key_and_nothing_else() -> None:
    lines = config.sshd_config().splitlines()
    assert {"AllowUsers alice", "PermitRootLogin no", "PasswordAuthentication no", "UsePAM no"} <= set(lines)
    assert "ListenAddress 10.98.0.2" in lines


def test_ssh_config_is_understood_by_ssh(tmp_path: Path) -> None:
    file = tmp_path / "ssh_config"
    file.write_text(config.ssh_config(PurePosixPath("/a b/laptop"), 42))
    done = subprocess.run(["ssh", "-G", "-F", file, LOGIN], capture_output=True, text=True, timeout=10, check=True)
    seen = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert seen["hostname"] == "10.98.0.2"
    assert seen["proxyusefdpass"] == "yes"
    assert seen["identityfile"] == "/a b/laptop/id_ed25519"
    assert seen["proxycommand"].startswith("nsenter --net=/proc/42/ns/net ")
    assert seen["stricthostkeychecking"] in {"yes", "true"}


def test_dial_is_python() -> None:
    compile(config.dial_py(), "dial.py", "exec")


def test_known_hosts_drops_the_comment() -> None:
    assert config.known_hosts("ssh-ed25519 AAAA login1\n") == "login1,10.98.0.2 ssh-ed25519 AAAA\n"


def test_modulefile_sets_what_an_admin_would() -> None:
    text = config.intel_mpi_modulefile()
    assert 'prefix = "/opt/intel/mpi/2021.15"' in text
    assert 'prepend_path("LD_LIBRARY_PATH", pathJoin(prefix, "lib"))' in text


def test_the_hosts_pip_settings_are_covered() -> None:
    assert config.common_etc(SITE)["pip.conf"] == ""


# ---------------------------------------------------------------- mounts


def _targets(node: str) -> dict[str, object]:
    return {mount.target: mount for mount in node_mounts(node, "/s", "/", "/cache/opt", 4000, "64m")}


def test_only_the_login_node_has_scratch_and_its_own_ssh() -> None:
    assert {"home/alice/scratch", "etc/ssh"} <= set(_targets(LOGIN))
    assert not {"home/alice/scratch", "etc/ssh"} & set(_targets("cn1"))


def test_what_is_the_hosts_or_the_sites_is_read_only() -> None:
    table = node_mounts("cn1", "/s", "/", "/cache/opt", 4000, "64m")
    writable = {mount.target for mount in table if not mount.read_only}
    assert not {"usr", "etc", "opt", "sys", "usr/local", "etc/profile.d"} & writable
    assert {"home", "tmp", "run", "dev/shm"} <= writable


def test_another_root_gives_usr_and_etc() -> None:
    table = node_mounts("cn1", "/s", "/suite/", "/cache/opt", 4000, "64m")
    assert table[0].source == "/suite/usr"
    assert next(mount for mount in table if mount.target == "etc").options.endswith(":/suite/etc")


def test_nothing_but_what_is_listed_comes_from_the_host() -> None:
    sources = {mount.source for mount in node_mounts("cn1", "/s", "/", "/cache/opt", 4000, "64m")}
    from_host = {source for source in sources if source.startswith("/") and not source.startswith("/s/")}
    assert from_host == {"/usr", "/cache/opt"}


# ---------------------------------------------------------------- network


def test_each_wire_can_be_named() -> None:
    assert wire_of(SITE, LAPTOP).far.interface == "out0"
    assert wire_of(SITE, LOGIN).far.interface == "p-login1"
    assert wire_of(SITE, "cn2").far.interface == "p-cn2"
    with pytest.raises(LabError, match="no link"):
        wire_of(SITE, "cn3")


def test_interface_names_fit_the_kernel() -> None:
    site = Site(compute_nodes=64, host_cpus=(0,), memory_mb=500)
    assert max(len(end.interface) for wire in wires(site) for end in (wire.near, wire.far)) <= 15


def test_links_are_read() -> None:
    text = """[{"ifname": "p-cn1", "flags": ["BROADCAST", "UP"], "qdisc": "tbf", "master": "br0"},
               {"ifname": "lo", "flags": ["LOOPBACK"], "qdisc": "noop"}]"""
    assert parse_links(text) == {
        "p-cn1": Interface(up=True, shaped=True, in_bridge=True),
        "lo": Interface(up=False, shaped=False, in_bridge=False),
    }
    assert parse_links("") == {}


def test_nothing_is_done_to_a_network_in_order() -> None:
    good = Interface(up=True, shaped=False, in_bridge=False)
    assert setup_lines("cn1", {"lo": good, "eth0": good}, wires(SITE)) == []


def test_what_is_missing_is_set_up() -> None:
    down = Interface(up=False, shaped=False, in_bridge=True)
    good = Interface(up=True, shaped=False, in_bridge=True)
    assert setup_lines("cn1", {"lo": good}, wires(SITE)) == [
        "address replace 10.99.0.11/24 dev eth0",
        "link set dev eth0 up",
    ]
    assert setup_lines("cn1", {"lo": good, "eth0": down}, wires(SITE)) == [
        "address replace 10.99.0.11/24 dev eth0",
        "link set dev eth0 up",
    ]
    assert setup_lines(SWITCH, {"lo": good, "br0": good, "p-login1": good, "p-cn1": down}, wires(SITE)) == [
        "link set dev p-cn1 up",
        "link set dev p-cn2 master br0",
        "link set dev p-cn2 up",
    ]


def test_firewall_lets_nothing_be_opened_outwards() -> None:
    rules = config.login_firewall().splitlines()
    assert rules[-2:] == ["-A OUTPUT -o ext0 -j REJECT", "COMMIT"]
    assert ":FORWARD DROP [0:0]" in rules
