"""The definition pytorch-rocm with stand-ins for PyTorch's libraries for ROCm, compiled here: packed, planned, checked.

The stand-ins have the names, sonames, dependencies and kernel tables of the real ones, and nothing else.
"""

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.bundle import pack, sources
from deployer.connected.check import check
from deployer.connected.image.definition import definition
from deployer.connected.site_profile.profile import Profile, load
from deployer.contract.rules.findings import ERROR
from deployer.contract.rules.verdict import REFUSE
from deployer.contract.site.plan import NO_MPI
from tests.unit.connected.check.test_rules import true_root
from tests.unit.connected.linker.code.test_offload_bundles import bundle as code_objects
from tests.unit.connected.linker.code.test_offload_bundles import packed, paged

DEFINITION = Path(__file__).parents[4] / "bundles" / "pytorch-rocm"
SITES = Path(__file__).parents[1] / "site_profile" / "sites"
PACKAGES = "usr/local/lib/python3.11/dist-packages"
TORCH = f"{PACKAGES}/torch/lib"
#: The processors of PyTorch's builds for ROCm 6.3, without the newest.
TARGETS = ("gfx900", "gfx906:xnack-", "gfx908:xnack-", "gfx90a:xnack-", "gfx942", "gfx1030", "gfx1100")


def compiled(path: Path, soname: str, *needed: Path, targets: tuple[str, ...] = ()) -> Path:
    """Compile a stand-in, with a section of kernels for ``targets``: one bundle, and one that is compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{soname}", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["cc", "-x", "c", *options, "-o", path, "/dev/null", "-x", "none", *needed], check=True, timeout=60)
    if targets:
        table = path.with_name("table")
        table.write_bytes(paged(code_objects(*targets[:2]), packed(code_objects(*targets[2:]), 3)))
        section = [f"--add-section=.hip_fatbin={table}", "--set-section-flags", ".hip_fatbin=contents,readonly"]
        subprocess.run(["objcopy", *section, path], check=True, timeout=60)
        table.unlink()
    return path


@pytest.fixture(scope="module")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return what packs the definition with the stand-ins, compiled for some processors."""
    if not (shutil.which("cc") and shutil.which("objcopy")):
        pytest.skip("no C compiler: apt-get install gcc")

    @functools.cache
    def make(targets: tuple[str, ...] = TARGETS) -> Path:
        root = tmp_path_factory.mktemp("rocm")
        top = true_root(root / "rootfs")
        lib = top / TORCH
        hip = compiled(
            lib / "libamdhip64.so", "libamdhip64.so.6", compiled(lib / "libhsa-runtime64.so", "libhsa-runtime64.so.1")
        )
        compiled(lib / "libtorch_hip.so", "libtorch_hip.so", hip, targets=targets)
        compiled(lib / "librccl.so", "librccl.so.1", hip, targets=targets)
        (lib / "rocblas" / "library").mkdir(parents=True)
        for name in {target.partition(":")[0] for target in targets}:
            (lib / "rocblas" / "library" / f"Kernels.so-000-{name}.hsaco").write_bytes(b"stand-in")
        (top / PACKAGES / "torch-2.7.1+rocm6.3.dist-info").mkdir()
        (top / PACKAGES / "torch-2.7.1+rocm6.3.dist-info" / "METADATA").write_text("Name: torch\n")
        (top / "usr/bin/true").rename(top / "usr/bin/python3")
        own = definition.load(str(DEFINITION))
        assert own.families == [NO_MPI]
        contents = sources.from_folder(top, own.name, own.version)
        contents = contents._replace(jobs=own.own_jobs, app=own.app_folder, mpi=own.families)
        return pack.pack(contents, [], root / "rocm.tar").path

    return make


def site(name: str, partition: str, **changes: Any) -> Profile:
    """Return a site's profile with one partition alone, and with what its documents leave open."""
    record = load(str(SITES / f"{name}.yaml")).model_dump(mode="json", exclude_defaults=True)
    own = {"user_namespaces": True, "launcher": "srun", "pmi": "none", **record["partitions"][partition], **changes}
    return Profile.model_validate({**record, "partitions": {partition: own}})


def of_gpus(path: Path, profile: Profile) -> list[tuple[str, str, str]]:
    """Return the findings on GPUs and their network, and check that the site would refuse errors."""
    (found,) = check.check_all(str(path), profile)
    assert found.plan
    findings = [each for each in found.checked.findings if each.code.startswith(("gpu.", "facts.gpu", "fabric.nccl"))]
    assert (found.checked.verdict == REFUSE) >= any(each.severity == ERROR for each in findings)
    return [(each.code, each.severity, each.message) for each in findings]


@pytest.mark.thorough
def test_the_definition_fits_gpus_of_amd(rocm: Callable[..., Path]) -> None:
    path = rocm()
    found = of_gpus(path, site("setonix", "gpu", driver={"kind": "amd", "version": "6.12.12"}))
    assert [(code, severity) for code, severity, _ in found] == [("fabric.nccl", "warning")]  # without a plug-in
    plan = check.check_all(str(path), site("setonix", "gpu"))[0].plan
    assert plan
    assert plan.devices == ("/dev/kfd", "/dev/dri")
    assert "ROCR_VISIBLE_DEVICES" in plan.pass_environment
    assert of_gpus(path, site("viper", "apu"))[0][2].startswith("its network is infiniband, for which RCCL opens")


@pytest.mark.thorough
def test_a_definition_for_other_processors_of_amd(rocm: Callable[..., Path]) -> None:
    found = of_gpus(rocm(("gfx1030", "gfx1100", "gfx90a:xnack-")), site("viper", "apu"))
    errors = [text for code, severity, text in found if (code, severity) == ("gpu.kernels", ERROR)]
    assert len(errors) == 3  # PyTorch, RCCL and rocBLAS
    for text in errors:
        assert "gfx1030, gfx1100, gfx90a" in text
        assert "the GPUs of apu are gfx942 (AMD Instinct MI300A)" in text


@pytest.mark.thorough
def test_an_old_driver_of_amd(rocm: Callable[..., Path]) -> None:
    found = of_gpus(rocm(), site("setonix", "gpu", driver={"kind": "amd", "version": "6.2.4"}))
    assert found[0][:2] == ("gpu.driver", "warning")
    assert "AMD tested with ROCm 5.5 to 6.1; the image has ROCm 6.3" in found[0][2]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("gpus", "shown"),
    [
        (
            {"kind": "nvidia", "model": "NVIDIA A100-SXM4-40GB", "count": 4, "capability": "8.0"},
            "NVIDIA A100-SXM4-40GB",
        ),
        ({"kind": "intel", "model": "Data Center GPU Max 1550", "count": 6}, "Intel Data Center GPU Max 1550"),
    ],
)
def test_gpus_of_another_vendor_are_named_with_the_bundles(
    gpus: dict[str, Any], shown: str, rocm: Callable[..., Path]
) -> None:
    record = load(str(SITES / "setonix.yaml")).model_dump(mode="json", exclude_defaults=True)
    node = {**record["partitions"]["gpu"]["node"], "gpus": gpus, "affinity": []}
    found = of_gpus(rocm(), site("setonix", "gpu", driver=None, node=node))
    (text,) = [text for code, _, text in found if code == "gpu.vendor"]
    assert text.startswith(
        f"this bundle's PyTorch is built for AMD ROCm (/{TORCH}/libtorch_hip.so); the GPUs of gpu are {shown}"
    )
    assert not [code for code, _, _ in found if code in ("gpu.kernels", "gpu.driver")]
