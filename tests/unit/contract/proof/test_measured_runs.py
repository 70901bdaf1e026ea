"""The table of ``report``: figures of results, efficiency, container against native."""

import csv
import io
import json

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.base.json_records import Fields, loads, stamped
from deployer.contract.proof import measured_runs


def result(payload, **values):
    ranks = [{"host": "cn%d" % (number % 2), "threads": 1} for number in range(2)]
    known = {"job": "train-1", "bundle": "train", "site": "lab", "runtime": "charliecloud", "world_size": 2}
    return Fields({**known, "exit_code": 0, "ranks": ranks, "payload": payload, **values}, "result.json", own=True)


def measured(**values):
    known = {"workload": "3dgan", "settings": "batch 128", "unit": "s/epoch", "values": [10.0, 12.0, 14.0]}
    return {"measured": {**known, **values}}


def run(**values):
    return measured_runs.of_result(result(measured()))._replace(**values)


def plain(head, rows, _right):
    return [" ".join(row) for row in (head, *rows)]


def test_a_payload_that_describes_its_figures():
    found = measured_runs.of_result(result(measured()))
    assert (found.workload, found.settings, found.unit) == ("3dgan", "batch 128", measured_runs.SECONDS)
    assert (found.nodes, found.ranks, found.threads, found.mean) == (2, 2, 1, 12)


def test_the_first_definitions_results_are_read_as_they_are():
    digits = {"epochs": [{"epoch": 1, "seconds": 9.0}, {"epoch": 2, "seconds": 2.0}, {"epoch": 3, "seconds": 2.5}]}
    found = measured_runs.of_result(result(digits))
    assert (found.workload, found.unit, found.values) == ("train", measured_runs.SECONDS, [2.0, 2.5])
    benchmark = {"network": "ResNet50", "batch_size": 4, "iterations": [1.5, 2]}
    found = measured_runs.of_result(result(benchmark))
    assert (found.workload, found.settings, found.unit) == ("ResNet50", "batch 4 per rank", measured_runs.IMAGES)
    assert found.values == [3.0, 4.0]  # of both ranks


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (None, "the payload wrote no result of its own"),
        ([1], "the payload wrote no result of its own"),
        ({"accuracy": 1}, "neither measured, epochs nor iterations"),
        ({"epochs": []}, "'epochs' has no numbers"),
        ({"epochs": [{"seconds": 0}]}, "'seconds': not a number from 1e-09 to 1e+15: 0"),
        ({"iterations": [True]}, "'iterations': not a number from 1e-09 to 1e+15: True"),
        ({"iterations": [float("nan")]}, "to 1e+15: nan"),
        ({"iterations": [10**400]}, "to 1e+15: 1000"),
        ({"iterations": [1e300]}, "to 1e+15: 1e+300"),  # its square is no number
        ({"iterations": [1e-320]}, "to 1e+15: 1e-320"),
        ({"iterations": [1.0] * 10001}, "more than 10000 numbers"),
        (measured(unit="m/s"), "unknown unit: 'm/s'"),
        (measured(values="fast"), "'values' is not a list of numbers"),
        (measured(workload=3), "'workload' is not of type str"),
    ],
)
def test_a_result_without_figures_says_why(payload, said):
    with pytest.raises(UsageError) as error:
        measured_runs.of_result(result(payload))
    assert said in error.value.message


@pytest.mark.parametrize(("code", "said"), [(None, "it has not ended"), (3, "it failed with exit code 3")])
def test_only_jobs_that_ended_well_are_compared(code, said):
    with pytest.raises(UsageError, match=said):
        measured_runs.of_result(result(measured(), exit_code=code))


def test_efficiency_is_that_of_the_smallest_run_of_the_same_layout():
    small, large = run(nodes=1, ranks=1, values=[100.0]), run(nodes=4, ranks=4, values=[31.25])
    other = run(nodes=1, ranks=2, values=[80.0])
    assert [row.efficiency for row in measured_runs.rows([large, other, small])] == [1, pytest.approx(0.8), 1]


def test_efficiency_of_rates_and_of_several_smallest_runs():
    rates = [run(unit=measured_runs.IMAGES, nodes=1, ranks=1, values=[rate]) for rate in (9.0, 11.0)]
    found = measured_runs.rows([*rates, run(unit=measured_runs.IMAGES, nodes=2, ranks=2, values=[19.0])])
    assert [row.efficiency for row in found] == [pytest.approx(value) for value in (0.9, 1.1, 0.95)]


def test_container_is_compared_with_native_jobs_that_are_alike():
    native = run(runtime="native", values=[10.0])
    found = measured_runs.rows([run(values=[12.5]), native, run(values=[12.5], settings="batch 64")])
    assert [(row.run.runtime, row.of_native) for row in found] == [
        ("charliecloud", pytest.approx(0.8)),
        ("native", None),
        ("charliecloud", None),  # of another batch size
    ]


def test_csv_has_all_rows_in_one_table():
    found = list(csv.DictReader(io.StringIO(measured_runs.csv_text(measured_runs.rows([run(threads=None)])))))
    assert found == [
        {
            "job": "train-1", "workload": "3dgan", "settings": "batch 128", "unit": "s/epoch", "site": "lab",
            "runtime": "charliecloud", "nodes": "2", "ranks": "2", "threads": "", "samples": "3", "mean": "12",
            "interval_95": "4.96828", "efficiency": "1", "container_to_native": "",
        }
    ]  # fmt: skip


def test_no_cell_of_csv_is_a_formula():
    rows = measured_runs.rows([run(workload="=HYPERLINK(1)", settings="@x", job="-2+3", site="+1", values=[9.0, 11.0])])
    (found,) = csv.DictReader(io.StringIO(measured_runs.csv_text(rows)))
    assert [found[name] for name in ("workload", "settings", "job", "site")] == [
        "'=HYPERLINK(1)",
        "'@x",
        "'-2+3",
        "'+1",
    ]
    assert (found["mean"], found["nodes"]) == ("10", "2")


def test_processes_that_torchrun_started_are_counted():
    found = measured_runs.of_result(result(measured(), workers=4))
    assert (found.nodes, found.ranks) == (2, 8)
    assert measured_runs.of_result(result({"iterations": [1.5, 2]}, workers=4)).values == [12.0, 16.0]


def test_processes_that_the_program_started_itself_are_counted_if_it_tells():
    assert measured_runs.of_result(result(measured(processes=16), workers=4)).ranks == 16
    for wrong in (0, 10**9):
        with pytest.raises(UsageError, match="field 'processes': not a number of processes: %d" % wrong):
            measured_runs.of_result(result(measured(processes=wrong)))


def test_a_record_is_read_again():
    rows = measured_runs.rows([run(), run(job="table")])
    text = json.dumps(measured_runs.record(rows, [("x-1", "it failed")]))
    runs, left_out = measured_runs.of_record(loads(text.encode(), measured_runs.SCHEMA, "r.json", own=True))
    assert [each._replace(values=tuple(each.values)) for each in runs] == [
        row.run._replace(values=tuple(row.run.values)) for row in rows
    ]
    assert left_out == [("x-1", "it failed")]


@pytest.mark.parametrize("wrong", [{"unit": "m/s"}, {"nodes": 0}, {"ranks": -1}, {"values": []}])
def test_a_forged_record_is_refused(wrong):
    record = stamped(measured_runs.SCHEMA, {"runs": [{**run()._asdict(), **wrong}], "left_out": []})
    with pytest.raises(UsageError):
        measured_runs.of_record(Fields(record, "r.json", own=True))


def test_control_characters_of_a_payload_reach_no_terminal():
    rows = measured_runs.rows([run(workload="\x1b[2Jgan", settings="\x1b]0;x")])
    assert "\x1b" not in "".join(measured_runs.lines(rows, plain)) + measured_runs.csv_text(rows)
