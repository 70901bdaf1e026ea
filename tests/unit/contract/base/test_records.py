"""Records are read and written by their annotations."""

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import pytest

from deployer.contract.base import records
from deployer.contract.base.errors import UsageError
from deployer.contract.base.json_records import Fields


class Wheel(NamedTuple):
    name: str
    size: int = 1

    @staticmethod
    def read(fields):
        if fields.text("name") == "none":
            raise fields.error(f"{fields.what}: no name")
        return records.read(Wheel, fields)


class Car(NamedTuple):
    name: str
    doors: int
    sold: bool
    note: Any
    owner: Optional[str]
    spare: Optional[Wheel]
    colours: List[str]
    wheels: Tuple[Wheel, ...]
    prices: Dict[str, int]
    names: Mapping[str, str]
    parts: Dict[str, List[str]]
    keys: Sequence[str] = ()
    lamp: Wheel = Wheel("lamp")
    by_place: Mapping[str, Wheel] = {}


WHOLE = Car(
    "a", 3, True, [1], None, Wheel("s"), ["red"], (Wheel("l", 2), Wheel("r")), {"EUR": 9}, {"de": "Auto"}, {"x": ["y"]}
)


def fields(**changes):
    return Fields(dict(json.loads(json.dumps(records.plain(WHOLE))), **changes), "the car")


@pytest.mark.parametrize("car", [WHOLE, WHOLE._replace(keys=("k",), by_place={"front": Wheel("f")}, spare=None)])
def test_what_is_written_is_read_again(car):
    assert records.read(Car, Fields(json.loads(json.dumps(records.plain(car))), "the car")) == car


def test_the_short_form_leaves_out_what_is_usual_and_is_read_again():
    short = json.loads(json.dumps(records.short(WHOLE)))
    assert not {"keys", "lamp"} & set(short)
    assert "owner" in short
    assert records.read(Car, Fields(short, "the car")) == WHOLE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": 3}, "the car: field 'name' is not of type str"),
        ({"doors": -1}, "the car: field 'doors' is negative"),
        ({"sold": None}, "the car: field 'sold' is not of type bool"),
        ({"owner": 3}, "the car: field 'owner' is not of type str"),
        ({"colours": [3]}, "the car: field 'colours' is not a list of strings"),
        ({"spare": []}, "the car: field 'spare' is not of type dict"),
        ({"spare": {"name": "none"}}, "the car, spare: no name"),
        (
            {"wheels": [{"name": "l"}, {"name": "r", "size": "2"}]},
            "the car, wheels[1]: field 'size' is not of type int",
        ),
        ({"prices": {"EUR": "9"}}, "the car, prices: field 'EUR' is not of type int"),
        ({"by_place": {"front": 3}}, "the car, by_place: field 'front' is not of type dict"),
        ({"keys": None}, "the car: field 'keys' is not of type list"),
    ],
)
def test_errors_name_the_wrong_field(changes, error):
    with pytest.raises(UsageError) as caught:
        records.read(Car, fields(**changes))
    assert str(caught.value) == error


def test_a_missing_field_without_a_default_is_an_error():
    with pytest.raises(UsageError, match="field 'doors' is missing"):
        records.read(Car, Fields({"name": "a"}, "the car"))


def test_the_caller_may_read_a_field_itself():
    assert records.read(Car, fields(name="\n"), name="b").name == "b"
