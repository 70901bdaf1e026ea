"""Spack's packages.yaml: the site's MPIs, batch system and runtimes."""

from pathlib import Path

import pytest

from deployer.connected.site_profile.importers import files as importers
from deployer.connected.site_profile.importers.draft import Draft
from deployer.connected.site_profile.profile import load
from deployer.contract.errors import UsageError

PACKAGES = """\
packages:
  all:
    target: [zen3]
    providers: {mpi: [cray-mpich]}
  cray-mpich:
    buildable: false
    externals:
    - spec: cray-mpich@8.1.28 %gcc@12.3.0
      prefix: /opt/cray/pe/mpich/8.1.28/ofi/gnu/12.3
      modules: [PrgEnv-gnu, cray-mpich/8.1.28]
    - spec: cray-mpich@8.1.28 %cce@17.0.0
      prefix: /opt/cray/pe/mpich/8.1.28/ofi/cray/17.0
  openmpi:
    externals:
    - spec: openmpi@4.1.1
      modules: [openmpi/4.1.1]
  spectrum-mpi:
    externals: [{spec: spectrum-mpi@10.3, prefix: /opt/ibm/smpi}]
  libfabric:
    externals: [{spec: 'libfabric@1.15.2.0 fabrics=cxi,rxm', prefix: /opt/cray/libfabric/1.15.2.0}]
  slurm:
    externals: [{spec: slurm@22-05-3, prefix: /usr}]
  apptainer:
    externals: [{spec: apptainer@1.3.1, prefix: /usr}]
  cuda:
    externals: [{spec: cuda@12.2, prefix: /opt/cuda}]
"""


def draft(tmp_path: Path, text: str) -> Draft:
    path = tmp_path / "packages.yaml"
    path.write_text(text)
    return importers.draft([path])


def test_facts(tmp_path: Path) -> None:
    found = draft(tmp_path, PACKAGES)
    tree = found.tree()
    assert tree["mpi"] == {
        "cray-mpich-8.1.28": {
            "family": "cray",
            "version": "8.1.28",
            "prefix": "/opt/cray/pe/mpich/8.1.28/ofi/gnu/12.3",
            "module": ["PrgEnv-gnu", "cray-mpich/8.1.28"],
        },
        "cray-mpich-8.1.28-cce-17.0.0": {
            "family": "cray", "version": "8.1.28", "prefix": "/opt/cray/pe/mpich/8.1.28/ofi/cray/17.0"
        },
    }  # fmt: skip
    assert tree["architecture"] == "x86_64"
    assert tree["scheduler"] == {"kind": "slurm", "version": "22.05.3"}
    assert tree["fabric"] == {"kind": "slingshot", "providers": ["cxi", "rxm"]}
    assert tree["runtimes"] == {"apptainer": {"version": "1.3.1"}}
    assert found.sources()["mpi.cray-mpich-8.1.28.prefix"] == ["packages.yaml:9"]
    (tmp_path / "draft.yaml").write_text(found.yaml())
    assert load(str(tmp_path / "draft.yaml")).mpi["cray-mpich-8.1.28"].family == "cray"


def test_what_is_not_expressed(tmp_path: Path) -> None:
    said = {str(each) for each in draft(tmp_path, PACKAGES).unexpressed}
    assert "packages.yaml:15: an MPI whose folder is not known: openmpi@4.1.1: openmpi/4.1.1" in said
    assert "packages.yaml:18: an MPI whose family a profile cannot name: spectrum-mpi@10.3" in said
    assert "packages.yaml: packages that jobs do not take from the site: 1 package" in said


def test_the_older_form_of_externals(tmp_path: Path) -> None:
    text = "packages:\n  mpich:\n    paths:\n      mpich@3.3 %gcc@8.2.0: /opt/mpich\n"
    assert draft(tmp_path, text).tree()["mpi"] == {
        "mpich-3.3": {"family": "mpich", "version": "3.3", "prefix": "/opt/mpich"}
    }


def test_mpis_of_several_files(tmp_path: Path) -> None:
    one, two = tmp_path / "a.yaml", tmp_path / "b.yaml"
    form = "packages:\n  openmpi:\n    externals:\n"
    form += "    - {spec: openmpi@4.1, prefix: /opt/a}\n"
    one.write_text(form)
    two.write_text(form + "    - {spec: openmpi@4.1, prefix: /opt/b, modules: [ompi-b]}\n")
    assert importers.draft([one, two]).tree()["mpi"] == {
        "openmpi-4.1": {"family": "openmpi", "version": "4.1", "prefix": "/opt/a"},
        "openmpi-4.1-2": {"family": "openmpi", "version": "4.1", "prefix": "/opt/b", "module": "ompi-b"},
    }
    two.write_text(two.read_text().replace("    - {spec: openmpi@4.1, prefix: /opt/a}\n", ""))
    assert list(importers.draft([one, two]).tree()["mpi"]) == ["openmpi-4.1", "openmpi-4.1-2"]


def test_an_mpi_that_is_listed_for_each_compiler_is_one(tmp_path: Path) -> None:
    """As for Gadi of NCI. A variant (+cuda) is not of the version. With modules of its own it is another."""
    text = "packages:\n  openmpi:\n    externals:\n"
    text += "    - {spec: openmpi@4.1 %gcc@13.2.0, prefix: /opt/a, modules: [ompi]}\n"
    text += "    - {spec: openmpi@4.1 %oneapi@2025, prefix: /opt/a, modules: [ompi]}\n"
    text += "    - {spec: openmpi@4.1+cuda %nvhpc@25.9, prefix: /opt/a, modules: [ompi]}\n"
    text += "    - {spec: openmpi@4.1, prefix: /opt/a, modules: [ompi-intel]}\n"
    found = draft(tmp_path, text)
    assert {name: each["module"] for name, each in found.tree()["mpi"].items()} == {
        "openmpi-4.1": "ompi",
        "openmpi-4.1-2": "ompi-intel",
    }
    assert found.sources()["mpi.openmpi-4.1.prefix"] == ["packages.yaml:4", "packages.yaml:5", "packages.yaml:6"]


@pytest.mark.parametrize(("value", "first"), [("[:2.4.6, 3]", ":"), ("@1.2", "@"), ("%gcc", "%")])
def test_a_spec_that_pyyaml_refuses_has_a_hint(tmp_path: Path, value: str, first: str) -> None:
    with pytest.raises(UsageError, match=r"packages\.yaml:3: not valid YAML: while ") as caught:
        draft(tmp_path, f"packages:\n  openmpi:\n    version: {value}\n")
    assert caught.value.hint == f"put a text that begins with {first} in quotes"


def test_a_colon_in_another_place_has_no_such_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not valid YAML") as caught:
        draft(tmp_path, "packages: [a: b: c]\n")
    assert not caught.value.hint
