"""Variables of the login shell in a profile's texts."""

import pytest

from deployer.contract.base import placeholders
from deployer.contract.base.errors import UsageError

HAS = {"USER": "alice", "PROJECT": "ab12", "SCRATCH": "/scratch/ab12/alice", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("/scratch/$PROJECT/$USER", "/scratch/ab12/alice"),
        ("${SCRATCH}/deployer", "/scratch/ab12/alice/deployer"),
        ("$SCRATCH", "/scratch/ab12/alice"),
        ("${PROJECT}-gpu", "ab12-gpu"),
        ("/no/placeholder", "/no/placeholder"),
    ],
)
def test_placeholders_are_replaced(text, value):
    assert placeholders.expand(text, HAS, "workspace") == value


@pytest.mark.parametrize("name", ["EMPTY", "ABSENT"])
def test_an_empty_variable_is_named(name):
    with pytest.raises(UsageError, match=rf"mounts .* /scratch/\${name}, and \${name} is empty or not set"):
        placeholders.expand("/scratch/$" + name, HAS, "mounts")


@pytest.mark.parametrize(
    "value",
    ["../other", "a/../b", "a b", "a;b", "$(id)", "`id`", "$HOME", "-rf", "a\nb", "*", "a:b", "a,b", "'", '"', "é"],
)
def test_an_unsafe_value_is_refused_with_the_variables_name(value):
    with pytest.raises(UsageError, match=r"the value of \$PROJECT is unsafe") as error:
        placeholders.expand("/scratch/$PROJECT", {"PROJECT": value}, "workspace")
    assert "\n" not in error.value.message


def test_a_value_is_not_expanded_again():
    with pytest.raises(UsageError, match="unsafe"):
        placeholders.expand("/x/$A", {"A": "$B", "B": "b"}, "workspace")


@pytest.mark.parametrize("text", ["/x/$", "/x/$1", "/x/${A:-b}", "/x/$(id)", "/x/${A"])
def test_other_dollar_signs_are_refused(text):
    with pytest.raises(UsageError, match=r"a \$ is not followed by a variable's name"):
        placeholders.check(text)


def test_names():
    assert placeholders.names("/$A/${B}/$A") == ["A", "B"]
