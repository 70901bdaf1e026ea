"""Links of a job: only below the private HOME and the job's folder, only to the bundle's data and app."""

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.bundle.job import Job
from deployer.contract.site import links
from deployer.site.jobs import result
from deployer.site.jobs.result_reserve import NAME

GOOD = {"~/.keras/datasets": "data/keras/datasets", "data": "data/mnist", "x/y.txt": "app/y.txt", "z": "app"}


def test_each_source_has_its_path_in_the_container():
    assert links.check(GOOD) == GOOD
    assert [links.target(source) for source in GOOD.values()] == [
        "/deployer/data/keras/datasets",
        "/deployer/data/mnist",
        "/deployer/app/y.txt",
        "/deployer/app",
    ]


@pytest.mark.parametrize(
    "place",
    ["", "~/", "/etc/x", "../x", "~/../x", "a/../b", "~/~x/..", "~x/y", "a//b", "a/", "./a", "a\nb", "a\x1b",
     "x" * 1001, "job.sh", "hosts/x", ".spare", "result.json/x", "rehearsal/x"],
)  # fmt: skip
def test_other_places_are_refused(place):
    with pytest.raises(UsageError, match="links: "):
        links.check({place: "data/x"})


@pytest.mark.parametrize(
    "source",
    ["", "data", "data/", "/data/x", "data/../x", "image/x", "app/", "app/..", "/deployer/data/x", "data/x\n", "~/x"],
)
def test_other_sources_are_refused(source):
    with pytest.raises(UsageError, match="invalid source"):
        links.check({"x": source})


@pytest.mark.parametrize("inner", ["~/.cache/torch", "~/.cache/torch/hub"])
def test_places_do_not_overlap(inner):
    with pytest.raises(UsageError, match="is within"):
        links.check({"~/.cache/torch/hub/x": "data/x", "~/.cache/a": "data/a", inner: "data/y"})
    with pytest.raises(UsageError, match="is within"):
        links.check({"~": "data/home", inner: "data/y"})
    links.check({"~/.cache": "data/x", "~/.cachet": "data/y", ".".join("ab"): "data/z"})


def test_no_link_hides_a_file_of_the_job():
    names = (result.LAUNCH_FILE, result.RESULT_FILE, result.SCRIPT, result.LOG, result.JOB_ID, result.CHECKPOINT, NAME)
    for name in (*names, result.PAYLOAD_FILE, result.HOSTS_FOLDER, result.RANKS_FOLDER, result.AGENT, result.NEXT):
        with pytest.raises(UsageError):
            links.check_place(name)


@pytest.mark.parametrize(
    "made", [{"../x": "/deployer/data/x"}, {"/x": "/deployer/app"}, {"x": "/etc"}, {"x": "/deployer/data/../y"}]
)
def test_a_record_has_only_such_links(made):
    with pytest.raises(UsageError):
        links.check_made(made)
    assert links.check_made({".keras/x": "/deployer/data/x"})


def test_a_job_keeps_its_links():
    job = Job("train", ["x"], 1, 1, 1, "01:00:00", links=GOOD)
    assert Job.read(Fields(job.record(), "a job")) == job
    with pytest.raises(UsageError, match="field 'links': links: invalid place"):
        Job.read(Fields(dict(job.record(), links={"/x": "data/x"}), "a job"))
    plain = Job("train", ["x"], 1, 1, 1, "01:00:00")
    assert "links" not in plain.record()


def test_a_folder_can_hold_all_files_of_the_home():
    assert links.check({"~": "data/home"}) == {"~": "data/home"}
    made = [("~/.cache/x", "/deployer/data/home/.cache/x"), ("a", "/deployer/app/a")]
    assert links.split(made) == ({".cache/x": "/deployer/data/home/.cache/x"}, {"a": "/deployer/app/a"})
    with pytest.raises(UsageError, match="~ leads to the file"):
        links.split([("~", "/deployer/data/x.csv")])
