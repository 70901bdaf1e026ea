"""The words with which a runtime is tried are those of its adapter."""

import pytest

from deployer.contract.site import runtime_table
from deployer.site.container.runtimes import trial_words


@pytest.mark.parametrize(
    "name", [known.name for known in runtime_table.TABLE if known.tried and not known.mounts and not known.refusal]
)
def test_a_folder_is_started(name):
    found = trial_words(name, "/made/image", "/made/private", ["/usr"], ["/bin/sh", "-c", ":"])
    assert all(isinstance(word, str) for word in found)
    assert found[:3] == ["bash", "-p", "-c"]
    assert found[-5:] == ["/made/image", "--", "/bin/sh", "-c", ":"]
    assert "/made/private" in found
    assert any(word.endswith("=/usr:/usr") for word in found)
