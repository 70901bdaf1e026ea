"""GPUs through a stand-in driver, and what a job is asked to prove."""

import os

import pytest

from deployer.contract.rules.hostfiles import FILE, HostFile
from deployer.contract.site.plan import Bind
from deployer.site.rank import gpu
from deployer.site.run import exec as execs
from deployer.site.storage import packages
from tests.running import IMAGE, PLAN, store

MODULE = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    "GCC version:  gcc version 12.2.0\n"
)
OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build\n"


@pytest.fixture
def driver(stand_in_driver, tmp_path, monkeypatch):
    """Return a function that looks at GPUs through the stand-in driver, with these settings."""
    monkeypatch.setenv("LD_LIBRARY_PATH", os.path.dirname(stand_in_driver))
    (tmp_path / "version").write_text(MODULE)

    def look(**settings):
        for name, value in settings.items():
            monkeypatch.setenv("STAND_IN_" + name, value)
        return gpu.look(module=str(tmp_path / "version"))

    return look


def test_gpus_that_work(driver):
    assert driver(DEVICES="4") == ("550.54.15", "12.4", 4, None)


def test_gpus_that_do_not(driver):
    assert driver(DEVICES="0").reason == "CUDA sees no device"
    found = driver(CUINIT="803")
    assert (found.cuda, found.devices, found.reason) == ("12.4", None, "cuInit: error 803, stand-in error")
    assert driver(CRASHES="1").reason == "libcuda ended the process (-6)"


def test_a_node_without_a_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libcuda.so.1").write_text("not a library")
    found = gpu.look(module=str(tmp_path / "none"))
    assert (found.driver, found.cuda, found.devices) == (None, None, None)
    assert "libcuda.so.1: file too short" in found.reason or "invalid ELF header" in found.reason
    assert "the node has no NVIDIA kernel module" in found.reason


def test_the_version_of_the_open_module(tmp_path, driver):
    (tmp_path / "version").write_text(OPEN_MODULE)
    assert driver(DEVICES="1").driver == "565.57.01"


def kernel_of(folder, kind, renders=(128, 129)):
    """Write what the kernel shows of GPUs of AMD or Intel, and their devices as plain files; return the two folders."""
    files = {"dev/kfd": "", "sys/module/amdgpu/version": "6.12.12\n"}
    for number in renders:
        node = "sys/class/kfd/kfd/topology/nodes/%d/properties" % number
        files[node] = "gfx_target_version 90010\ndrm_render_minor %d\n" % number
        device = "sys/class/drm/renderD%d/device/" % number
        files.update({device + "vendor": "0x8086\n", device + "class": "0x038000\n", "dev/dri/renderD%d" % number: ""})
    for path, text in files.items():
        if kind == "amd" or ("kfd" not in path and "amdgpu" not in path):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return str(folder / "sys"), str(folder / "dev")


@pytest.mark.parametrize(("kind", "title"), [("amd", "HIP"), ("intel", "Level Zero")])
def test_gpus_of_amd_and_intel(kind, title, tmp_path, monkeypatch, stand_in_hip, stand_in_level_zero):
    """Through the devices, and stand-ins for HIP and Level Zero."""
    where = kernel_of(tmp_path, kind)
    driver = "6.12.12" if kind == "amd" else None

    def look(**settings):
        for name, value in settings.items():
            monkeypatch.setenv("STAND_IN_" + name, value)
        return gpu.look("gpu-" + kind, sys_folder=where[0], dev=where[1])

    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert look() == (driver, None, 2, None)  # as PyTorch has its HIP in a folder of its own: the devices alone
    paths = (stand_in_hip, stand_in_level_zero)
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(map(os.path.dirname, paths)))
    assert look(DEVICES="1") == (driver, None, 1, None)
    assert look(DEVICES="0").reason == title + " sees no device"
    said = {"amd": "hipInit: error 803, stand-in error", "intel": "zeInit: error 803, unknown"}
    assert look(CUINIT="803").reason == said[kind]
    os.rename(os.path.join(where[1], "dri/renderD128"), str(tmp_path / "away"))
    assert look(CUINIT="0", DEVICES="1").reason is None  # a job has some of a node's GPUs
    os.rename(os.path.join(where[1], "dri/renderD129"), str(tmp_path / "away"))
    assert look().reason == where[1] + "/dri/renderD128: No such file or directory"


def test_why_gpus_of_amd_cannot_be_used(tmp_path):
    sys_folder, dev = kernel_of(tmp_path, "amd")
    os.rename(os.path.join(dev, "kfd"), str(tmp_path / "away"))
    found = gpu.look("gpu-amd", sys_folder=sys_folder, dev=dev)
    assert (found.devices, found.reason) == (2, dev + "/kfd: No such file or directory")
    found = gpu.look("gpu-amd", sys_folder=str(tmp_path / "none"), dev=dev)
    assert (found.devices, found.reason) == (0, "the node's kernel lists no GPU of AMD")


@pytest.mark.parametrize(
    ("variable", "sign", "expected"),
    [
        ("ROCR_VISIBLE_DEVICES", "rootfs/opt/rocm-6.2.4", ("gpu-amd",)),
        ("ROCR_VISIBLE_DEVICES", "wheels/lib/torch/lib/rocblas", ("gpu-amd",)),
        ("ZE_AFFINITY_MASK", "rootfs/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1", ("gpu-intel",)),
        ("ROCR_VISIBLE_DEVICES", "rootfs/usr/local/cuda-12", ()),
        ("CUDA_VISIBLE_DEVICES", "rootfs/opt/rocm-6.2.4", ()),
    ],
)
def test_what_a_job_on_other_gpus_has_to_prove(variable, sign, expected, tmp_path):
    installed = store(tmp_path).find("hello")
    os.makedirs(os.path.join(installed.folder, sign))
    assert packages.expects(installed, PLAN._replace(pass_environment=[variable])) == expected


@pytest.mark.parametrize(
    "place",
    ["rootfs/usr/lib/python3/dist-packages", "rootfs/usr/local/lib/python3.11/site-packages", "wheels/lib"],
)
def test_what_a_job_has_to_prove(tmp_path, place):
    installed = store(tmp_path).find("hello")
    assert packages.expects(installed, PLAN) == ()
    os.makedirs(os.path.join(installed.folder, place, "intel_extension_for_tensorflow"))
    assert packages.expects(installed, PLAN) == ("itex",)
    driver = HostFile("lib/libcuda.so.1", FILE, "/usr/lib64/libcuda.so.1", "the GPU driver's")
    bound = PLAN._replace(host=(driver,))
    assert packages.expects(installed, bound) == ("itex",)  # an image without CUDA
    os.makedirs(os.path.join(installed.folder, place, "nvidia"))
    assert packages.expects(installed, bound) == ("gpu", "itex")
    assert packages.expects(installed, PLAN) == ("itex",)


def test_an_image_that_brings_cuda(tmp_path):
    path = "/usr/lib64/libcuda.so.1"
    bound = PLAN._replace(binds=[Bind(path, path, "driver")])
    installed = store(tmp_path / "a").find("hello")
    assert packages.expects(installed, bound) == ()
    os.makedirs(os.path.join(installed.rootfs, "usr/local/cuda-12.4"))
    assert packages.expects(installed, bound) == ("gpu",)
    image = IMAGE._replace(env=[*IMAGE.env, "CUDA_VERSION=12.4.1"])
    assert packages.expects(store(tmp_path / "b", image=image).find("hello"), bound) == ("gpu",)


def test_a_variant_stands_before_wheels_and_image(tmp_path):
    installed = store(tmp_path).find("hello")
    assert packages.folder(installed, "horovod", "mpich-abi") is None
    for place in ("rootfs/usr/lib/python3/dist-packages", "wheels/lib", "variants/mpich-abi/lib"):
        made = os.path.join(installed.folder, place, "horovod")
        os.makedirs(made)
        assert packages.folder(installed, "horovod", "mpich-abi") == made
    assert packages.folder(installed, "horovod", None) == os.path.join(installed.wheels, "lib", "horovod")


@pytest.mark.parametrize(
    ("environment", "tasks"),
    [
        ({}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "MPI_LOCALNRANKS": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
    ],
)
def test_tasks_of_a_step_on_this_node(environment, tasks):
    assert execs.tasks_here(environment) == tasks
