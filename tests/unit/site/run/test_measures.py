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
        return gpu.look(str(tmp_path / "version"))

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
    found = gpu.look(str(tmp_path / "none"))
    assert (found.driver, found.cuda, found.devices) == (None, None, None)
    assert "libcuda.so.1: file too short" in found.reason or "invalid ELF header" in found.reason
    assert "the node has no NVIDIA kernel module" in found.reason


def test_the_version_of_the_open_module(tmp_path, driver):
    (tmp_path / "version").write_text(OPEN_MODULE)
    assert driver(DEVICES="1").driver == "565.57.01"


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
