"""The first start option that nodes and site allow is taken, and the reason says what was passed over."""

import pytest

from deployer.contract.base.errors import Refused
from deployer.contract.site.choose import FEW_RANKS, Obstacle, StagingNeed, choose
from deployer.contract.site.plan import NodeShape, Plan, StartOption

SMALL = StartOption("charliecloud-folder", "charliecloud", "folder", "srun", "pmi2", 4)
LARGE = StartOption(
    "charliecloud-memory", "charliecloud", "memory", "srun", "pmi2", None, place="/dev/shm", room_mb=3000
)
DISK = LARGE._replace(name="charliecloud-disk", staging="disk", place="/local")
OTHER = StartOption("udocker-folder", "udocker", "folder", "srun", "pmi2", None)


def need(size, ranks=0, objection=None):
    """Return a need that is the same for each form."""
    forms = ("memory", "disk", "squashfs")
    return StagingNeed(
        dict.fromkeys(forms, size), ranks, dict.fromkeys(forms, Obstacle(*objection)) if objection else {}
    )


def plan(*options):
    return Plan(
        "lab",
        "batch",
        "b:1",
        "~/d",
        [],
        NodeShape(1, 1, 1, 4000),
        "slurm",
        [],
        [],
        None,
        [],
        {},
        [],
        list(options),
    )


def test_the_first_that_fits_is_taken():
    choice = choose(plan(SMALL, LARGE), 4, {})
    assert choice.start_option == SMALL
    assert choice.reason == "first in the plan for 4 nodes that lab can use"


def test_many_ranks_on_few_nodes_read_the_folder_only_if_nothing_else_fits():
    both = plan(SMALL, LARGE, OTHER)
    assert choose(both, 2, {}, ranks=FEW_RANKS).start_option == SMALL
    assert choose(both, 2, {}, ranks=FEW_RANKS + 1).start_option == LARGE
    assert choose(both, 2, {}, need(5000), ranks=99).start_option == SMALL
    assert choose(both, 2, {}, need(5000), ranks=99).reason.startswith("first in the plan for 2 nodes")
    assert choose(both, 5, {}, need(5000), ranks=99).start_option == OTHER
    assert choose(both, 2, {}, staging="folder", ranks=99).start_option == SMALL


def test_node_count_and_site_veto():
    assert choose(plan(SMALL, LARGE), 5, {}).start_option == LARGE
    choice = choose(plan(SMALL, OTHER), 1, {"charliecloud": "no ch-run in PATH"})
    assert choice.start_option == OTHER
    assert choice.reason.endswith("skipped: charliecloud-folder (no ch-run in PATH)")


def test_without_a_container_only_for_who_asks():
    native = StartOption("native-folder", "native", "folder", "srun", "pmi2", None)
    both = plan(SMALL, native)
    assert choose(both, 1, {}).start_option == SMALL
    with pytest.raises(Refused, match=r": charliecloud-folder \(gone\)$"):
        choose(both, 1, {"charliecloud": "gone"})
    choice = choose(both, 8, {}, runtime="native")
    assert choice.start_option == native
    assert choice.reason == "--runtime native: first in the plan for 8 nodes that lab can use"
    assert both.containers == [SMALL]


def test_the_user_s_runtime():
    choice = choose(plan(SMALL, OTHER), 1, {}, runtime="udocker", staging="folder")
    assert choice.start_option == OTHER
    assert choice.reason.startswith("--runtime udocker: --staging folder: first in the plan")
    with pytest.raises(Refused, match=r"no start option with udocker, which the site's policy must allow$"):
        choose(plan(SMALL), 1, {}, runtime="udocker")
    with pytest.raises(Refused, match=r"udocker-folder \(not here\)"):
        choose(plan(SMALL, OTHER), 1, {"udocker": "not here"}, runtime="udocker")


def test_a_staging_that_the_runtime_does_not_support_is_refused_with_those_that_it_does():
    said = "udocker cannot use an image that is staged so; it can: folder, disk, memory$"
    with pytest.raises(Refused, match=said):
        choose(plan(SMALL, OTHER), 1, {}, runtime="udocker", staging="squashfs")


def test_nothing_left_is_refused_with_every_reason():
    with pytest.raises(Refused) as error:
        choose(plan(SMALL, OTHER), 5, {"udocker": "not allowed"})
    assert "charliecloud-folder (meant for at most 4 nodes), udocker-folder (not allowed)" in error.value.message
    with pytest.raises(Refused, match="the plan has no start option"):
        choose(plan(), 1, {})


@pytest.mark.parametrize(
    ("option", "needed", "objection"),
    [
        (LARGE, need(3001), "the image takes 3001 MiB, but /dev/shm has 3000 MiB"),
        (DISK, need(3001), "the image takes 3001 MiB, but /local has 3000 MiB"),
        (LARGE, need(2500, 1501), "2500 MiB for the image + 1501 MiB for the ranks = 4001 MiB, but a job may use 4000"),
        (LARGE._replace(staging="squashfs"), need(2500, 1501), "2500 MiB for the image + 1501 MiB for the ranks"),
        (DISK, need(1, 0, ("its bundle is gone", "keep it")), "its bundle is gone"),
        (LARGE._replace(place=None), need(1), "this deployer does not know its staging"),
        (LARGE._replace(staging="moon"), need(1), "this deployer does not know its staging"),
    ],
)
def test_what_does_not_fit_into_a_node_is_passed_over_with_the_arithmetic(option, needed, objection):
    choice = choose(plan(SMALL, option, OTHER), 5, {}, needed)
    assert choice.start_option == OTHER
    assert f"{option.name} ({objection}" in choice.reason


@pytest.mark.parametrize(("option", "needed"), [(LARGE, need(2500, 1500)), (DISK, need(3000, 9000))])
def test_what_just_fits_is_taken(option, needed):
    assert choose(plan(SMALL, option), 5, {}, needed).start_option == option


def test_the_users_word_stands_over_the_number_of_nodes_but_not_over_the_arithmetic():
    choice = choose(plan(SMALL, LARGE), 100, {}, need(1), "folder")
    assert choice.start_option == SMALL
    assert choice.reason == "--staging folder: first in the plan for 100 nodes that lab can use"
    assert choose(plan(SMALL, LARGE), 1, {}, need(1), "memory").start_option == LARGE
    with pytest.raises(Refused, match="3001 MiB, but /dev/shm has 3000"):
        choose(plan(SMALL, LARGE), 1, {}, need(3001), "memory")
    with pytest.raises(Refused, match="no start option that stages to disk"):
        choose(plan(SMALL, LARGE), 1, {}, need(1), "disk")


def test_what_the_profile_rules_out_is_told():
    without = plan(SMALL, OTHER)._replace(against={"charliecloud": "the nodes have no user namespaces"})
    choice = choose(without, 1, {})
    assert choice.start_option == OTHER
    assert choice.reason.endswith("skipped: charliecloud-folder (the nodes have no user namespaces)")
    with pytest.raises(Refused, match=r"no user namespaces.*udocker-folder .no ptrace"):
        choose(without, 1, {"udocker": "no ptrace"})


def test_what_to_do_is_the_hint_and_not_hidden_between_the_reasons():
    """As with the default staging on more nodes than it is meant for, and no kept bundle."""
    with pytest.raises(Refused) as error:
        choose(
            plan(SMALL, LARGE, DISK), 32, {}, need(1, 0, ("its bundle is not there", "install it again with --keep"))
        )
    assert error.value.message.endswith(
        "charliecloud-folder (meant for at most 4 nodes), charliecloud-memory (its bundle is not there), "
        "charliecloud-disk (its bundle is not there)"
    )
    assert error.value.hint == "use it on more nodes all the same: --staging folder; or install it again with --keep"


def test_a_file_mounted_in_place_needs_room_for_the_ranks_alone():
    mounted = LARGE._replace(name="charliecloud-mounted", staging="mounted")
    sizes = StagingNeed({"memory": 9000, "mounted": 0}, 3999)
    assert choose(plan(SMALL, LARGE, mounted), 32, {}, sizes).start_option == mounted
    with pytest.raises(Refused, match=r"0 MiB for the image \+ 4001 MiB for the ranks"):
        choose(plan(SMALL, LARGE, mounted), 32, {}, sizes._replace(ranks_mb=4001))


def test_a_missing_sif_file_is_an_objection_where_it_is_staged():
    option = LARGE._replace(name="apptainer-squashfs", runtime="apptainer", staging="squashfs", sif=True)
    absent = StagingNeed({}, objections={"sif": Obstacle("it has no SIF file", "squash it")})
    assert choose(plan(option), 9, {}, StagingNeed({}, objections={"squashfs": Obstacle("x")})).start_option == option
    with pytest.raises(Refused, match=r"apptainer-squashfs \(it has no SIF file\)") as caught:
        choose(plan(option), 9, {}, absent)
    assert caught.value.hint == "squash it"
