"""The plot of a report, drawn with matplotlib. deployer does not require it: most reports are read as tables."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployer.contract.base.errors import MissingTool, UsageError
from deployer.contract.base.text import printable
from deployer.contract.proof import interval
from deployer.contract.proof.measured_runs import UNITS, Row, series
from deployer.system import files

#: File extensions that can be drawn.
FORMATS = (".png", ".svg")
#: The size in inches; pixels per inch of a PNG.
_SIZE, _DPI = (8.0, 5.5), 150


def check(path: Path) -> None:
    """Check before the work whether a plot can be drawn.

    Raises:
        UsageError: the extension is not in FORMATS.
        MissingTool: matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"cannot draw {path}: the name must end with {' or '.join(FORMATS)}")
    _figure_module()


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Draw a panel per workload, with a line per layout over the number of nodes, and the ideal line."""
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.run.workload, row.run.unit), []).append(row)
    figure = _figure_module().Figure(figsize=(_SIZE[0], _SIZE[1] * len(panels)), layout="constrained")
    for number, ((workload, unit), members) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(len(panels), 1, number)
        axes.set(title=_plain(workload), xlabel="nodes", ylabel=UNITS[unit], xscale="log", yscale="log")
        lines: dict[str, list[Row]] = {}
        for row in members:
            lines.setdefault(series(row.run), []).append(row)
        for name, line in lines.items():
            _line(axes, name, line)
        nodes = sorted({row.run.nodes for row in members})
        axes.set_xticks(nodes, [str(count) for count in nodes])
        # Keep the minor ticks of the values: within a power of ten, only they have numbers.
        axes.xaxis.set_minor_locator(importlib.import_module("matplotlib.ticker").NullLocator())
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    with files.published(str(path)) as stream:
        figure.savefig(stream, format=path.suffix[1:], dpi=_DPI)


def _line(axes: Any, name: str, line: Sequence[Row]) -> None:
    runs = [row.run for row in line]
    ideal = runs[0].speed / runs[0].nodes
    nodes = [run.nodes for run in runs]
    half = [interval.half_width(run.values) or 0 for run in runs]
    style = {"marker": "o", "capsize": 3, "label": _plain(name)}
    if runs[0].published is not None:
        style.update(linestyle=":", marker="x")
    drawn = axes.errorbar(nodes, [run.mean for run in runs], yerr=half, **style)
    if len(set(nodes)) > 1:
        speeds = [ideal * count for count in nodes]
        perfect = [1 / speed if runs[0].slower_is_more else speed for speed in speeds]
        axes.plot(nodes, perfect, color=drawn.lines[0].get_color(), linestyle="--", linewidth=0.8, alpha=0.6)


def _plain(text: str) -> str:
    """Return a text that matplotlib draws unchanged: a dollar sign would begin mathematics."""
    return printable(text).replace("$", r"\$")


def _figure_module() -> Any:
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError:
        hint = "install it beside deployer: pip install matplotlib; or print --csv and draw it elsewhere"
        raise MissingTool("a plot needs matplotlib, which is not installed", hint) from None
