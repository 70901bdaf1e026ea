import pytest

from deployer.contract.base.errors import IntegrityError
from deployer.contract.bundle import wheel
from deployer.contract.bundle.wheel import WheelEntry


@pytest.mark.parametrize(
    ("file_name", "name", "version"),
    [
        ("numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "numpy", "1.26.4"),
        ("torch-2.1.0+cpu-cp311-cp311-linux_x86_64.whl", "torch", "2.1.0+cpu"),
        ("demo_x-1.0-2local-py3-none-any.whl", "demo_x", "1.0"),
    ],
)
def test_file_names(file_name, name, version):
    assert wheel.distribution(file_name) == (name, version)


@pytest.mark.parametrize("file_name", ["demo.whl", "demo-1.0.tar.gz", "a/demo-1.0-py3-none-any.whl", "demo-1-py3.whl"])
def test_what_is_no_name_of_a_wheel(file_name):
    with pytest.raises(IntegrityError, match="not the file name of a wheel"):
        wheel.distribution(file_name)


def test_the_metadatas_folder_is_of_the_distribution():
    names = ["demo/__init__.py", "Demo.X-1.0.dist-info/WHEEL", "top.py"]
    assert wheel.dist_info("demo_x-1.0-py3-none-any.whl", names) == "Demo.X-1.0.dist-info"
    with pytest.raises(IntegrityError, match="another distribution"):
        wheel.dist_info("other-1.0-py3-none-any.whl", names)
    with pytest.raises(IntegrityError, match=r"2 \.dist-info folders"):
        wheel.dist_info("demo_x-1.0-py3-none-any.whl", [*names, "a-1.dist-info/WHEEL"])


def placed(*names):
    """Return where files go, by their names in the archive."""
    record = dict.fromkeys(names, ("sha256=%s" % ("A" * 43), ""))
    return {
        file.name: (file.path, file.executable)
        for file in wheel.files("demo-1.0.dist-info", [WheelEntry(name, 3, 0) for name in names], record)
    }


def test_each_part_of_data_has_its_place():
    found = placed(
        "demo/__init__.py",
        "demo-1.0.data/purelib/pure.py",
        "demo-1.0.data/platlib/plat.so",
        "demo-1.0.data/scripts/tool",
        "demo-1.0.data/headers/demo.h",
        "demo-1.0.data/data/share/demo/x",
        "demo-1.0.data/data/lib/libdemo.so",
        "demo-1.0.dist-info/METADATA",
    )
    assert list(found.values()) == [
        ("lib/demo/__init__.py", False),
        ("lib/pure.py", False),
        ("lib/plat.so", False),
        ("bin/tool", True),
        ("include/demo/demo.h", False),
        ("share/demo/x", False),
        ("lib/libdemo.so", False),
        ("lib/demo-1.0.dist-info/METADATA", False),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "../out", "/etc/passwd", "a/../../out", "a//b", "./a", "a\\b", "a\nb", "demo-1.0.data/scripts/../../out",
        "demo-1.0.data/scripts", "demo-1.0.data/sbin/tool", "demo-1.0.data/data/", "\udc80",
    ],
)  # fmt: skip
def test_no_name_leads_out(name):
    with pytest.raises(IntegrityError):
        placed(name)


@pytest.mark.parametrize(
    "names",
    [("a", "a/b"), ("pure.py", "demo-1.0.data/purelib/pure.py"), ("a/b/c", "a")],
)
def test_files_that_could_not_stand_beside_each_other(names):
    with pytest.raises(IntegrityError, match=r"twice|both a file and a folder"):
        placed(*names)


def test_names_that_differ_only_in_case_are_two():
    assert len(placed("demo-1.0.data/scripts/mpicc", "demo-1.0.data/scripts/mpiCC")) == 2


def test_links_and_devices_are_no_plain_files():
    for mode in (0o120777, 0o020644, 0o010644, 0o040755):
        with pytest.raises(IntegrityError, match="not a regular file"):
            wheel.files("demo-1.0.dist-info", [WheelEntry("x", 1, mode)], {"x": ("sha256=" + "A" * 43, "1")})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, "does not list x"),
        ({"x": ("", "3")}, "no SHA-256"),
        ({"x": ("md5=" + "A" * 22, "3")}, "no SHA-256"),
        ({"x": ("sha1=" + "A" * 27, "3")}, "no SHA-256"),
        ({"x": ("sha256=!", "3")}, "invalid digest"),
        ({"x": ("sha256=" + "A" * 43, "4")}, "has 3 bytes, but its RECORD says 4"),
        ({"x": ("sha256=" + "A" * 43, "3"), "gone": ("sha256=A", "1")}, "lists gone, which is not in the archive"),
    ],
)
def test_record_vouches_for_all_and_for_nothing_else(record, reason):
    with pytest.raises(IntegrityError, match=reason):
        wheel.files("demo-1.0.dist-info", [WheelEntry("x", 3, 0)], record)


def test_a_file_that_stands_twice_is_not_vouched_for_twice():
    with pytest.raises(IntegrityError, match="has the file twice"):
        wheel.files("demo-1.0.dist-info", [WheelEntry("x", 3, 0)] * 2, {"x": ("sha256=" + "A" * 43, "3")})


def test_record_is_csv():
    assert wheel.read_record('"a,b.py",sha256=x,1\n\nd/RECORD,,\n') == {
        "a,b.py": ("sha256=x", "1"),
        "d/RECORD": ("", ""),
    }
    for broken in ("a,b\n", "a,,\na,,\n"):
        with pytest.raises(IntegrityError):
            wheel.read_record(broken)
    line = wheel.record_line("lib/a,b.py", "00" * 32, 5)
    assert wheel.read_record(line) == {"a,b.py": ("sha256=" + "A" * 43, "5")}
    assert wheel.record_line("bin/tool", "00" * 32, 5).startswith("../bin/tool,")


@pytest.mark.parametrize("text", ["", "Wheel-Version: 2.0\n", "Root-Is-Purelib: true\n", "Wheel-Version: 11.0"])
def test_another_version_of_the_format(text):
    with pytest.raises(IntegrityError, match="version 1"):
        wheel.check_version(text)


def test_entry_points_become_scripts():
    text = "[console_scripts]\nDemo = demo.cli:main\nother=demo:App.run [extra]\n\n[gui_scripts]\nwin = demo:gui\n"
    found = wheel.console_scripts(text + "[x.y]\na = b\n", "/usr/bin/python3")
    assert sorted(found) == ["Demo", "other", "win"]
    assert found["Demo"].startswith("#!/usr/bin/python3\nimport sys\n\nfrom demo.cli import main\n")
    assert "from demo import App\n" in found["other"]
    assert "sys.exit(App.run())" in found["other"]


@pytest.mark.parametrize(
    "line", ["../x = a:b", "x = a", "x = a:b; evil", "x = a b:c", "- = a:b", ".. = a:b", "a/b = a:b", "no equals"]
)
def test_what_can_be_no_script(line):
    with pytest.raises(IntegrityError, match=r"entry_points|entry point"):
        wheel.console_scripts(f"[console_scripts]\n{line}\n", "python3")


def test_the_interpreter_of_a_script_is_put_right():
    assert wheel.with_interpreter(b"#!python\nx\n", "/p") == b"#!/p\nx\n"
    assert wheel.with_interpreter(b"#!pythonw -u -E\nx", "/p") == b"#!/p -u -E\nx"
    for kept in (b"#!/bin/sh\n", b"\x7fELF", b"#! python\n", b""):
        assert wheel.with_interpreter(kept, "/p") == kept
