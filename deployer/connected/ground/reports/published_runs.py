"""Published measurements that ``report --beside`` shows next to your own jobs: published_runs.yaml."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deployer.connected.ground import own_data
from deployer.contract.proof import measured_runs
from deployer.contract.proof.measured_runs import Run

_TABLES = own_data.load_yaml(Path(__file__).with_suffix(".yaml"))
#: The names that ``--beside`` accepts.
NAMES = tuple(_TABLES)


def published(names: Sequence[str]) -> list[Run]:
    """Return the runs of these published tables, with each table once."""
    return [run for name in dict.fromkeys(names) for run in _runs(name, _TABLES[name])]


def _runs(table: str, content: dict[str, Any]) -> Iterator[Run]:
    for series in content["series"]:
        for nodes, seconds, percent in series["times"]:
            yield Run(
                job=f"{table}: {series['name']}",
                workload=content["workload"],
                settings=series.get("doubtful", {}).get(nodes, ""),
                unit=measured_runs.SECONDS,
                site=content["site"],
                runtime=content["runtime"],
                nodes=nodes,
                ranks=nodes * series["ranks"],
                threads=series["threads"],
                values=(seconds,),
                published=percent / 100,
            )
