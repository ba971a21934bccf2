"""What differential privacy costs: the tables and the picture, from benchmarks/results/privacy_accuracy.json."""

import hashlib
import json
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "privacy_accuracy.json"
PICTURE = HERE / "images" / "privacy-accuracy.png"
DATA = ("beijing12", "household_power")
Run = tuple[str, float | None, int | None]
"""Features, epsilon and colluders of a run."""

GREEDY: Run = ("greedy", None, None)
EXACT: Run = ("plain", None, None)


@cache
def fits() -> dict[tuple[str, Run], list[dict[str, Any]]]:
    """Return the fits of each data set and run."""
    found: dict[tuple[str, Run], list[dict[str, Any]]] = {}
    for fit in json.loads(RESULTS.read_text(encoding="utf-8")):
        found.setdefault((fit["data"], (fit["features"], fit["epsilon"], fit["colluders"])), []).append(fit)
    return found


def runs() -> list[Run]:
    """Return the runs, those without privacy first, then by epsilon from the largest."""
    found = {run for _, run in fits()}
    return sorted(found, key=lambda run: (run[1] is not None, run[0] != "greedy", run[2] is not None, -(run[1] or 0)))


def title(run: Run) -> str:
    """Return a run in words."""
    features, epsilon, colluders = run
    if epsilon is None:
        return "greedy features, not private" if features == "greedy" else "plain features, no noise"
    return f"epsilon {epsilon:g}" + (", shared noise" if colluders else "")


def _values(data: str, run: Run, metric: str) -> list[float]:
    return [fit[metric] for fit in fits()[data, run]]


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _shown(data: str, run: Run, metric: str) -> str:
    values = _values(data, run, metric)
    return f"{statistics.fmean(values):.3f} ± {_deviation(values):.3f}".replace(" ", "\N{NO-BREAK SPACE}")


def _ratio(data: str, run: Run, other: Run) -> str:
    return f"{statistics.fmean(_values(data, run, 'own')) / statistics.fmean(_values(data, other, 'own')):.2f}"


def cost() -> str:
    """Return errors, and what they are beside those without noise and those of greedy features."""
    head = ["", "own RSE", "union RSE", "own / no noise", "own / greedy"]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for data in DATA:
        lines.append([f"**{data}**", *[""] * (len(head) - 1)])
        for run in runs():
            ratios = [_ratio(data, run, other) for other in (EXACT, GREEDY)]
            lines.append([title(run), _shown(data, run, "own"), _shown(data, run, "union"), *ratios])
    return "\n".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in lines) + "\n"


BLOCKS: dict[str, Callable[..., str]] = {"privacy-cost": cost}


def digest() -> str:
    """Return the digest of the results, which the picture carries."""
    return hashlib.sha256(RESULTS.read_bytes()).hexdigest()


def drawn_from() -> str:
    """Return the digest of the results that the picture was drawn from."""
    from PIL import Image

    return str(Image.open(PICTURE).info.get("results", "")) if PICTURE.exists() else ""


def write_picture() -> None:
    """Draw errors against epsilon, unless the picture is of these results already."""
    if drawn_from() == digest():
        return
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(DATA), figsize=(4.6 * len(DATA), 3.6), layout="constrained")
    for panel, data in zip(panels, DATA, strict=True):
        for metric, colour in (("own", "C0"), ("union", "C1")):
            noisy = sorted(run for run in runs() if run[1] is not None and run[2] is None)
            values = [_values(data, run, metric) for run in noisy]
            panel.errorbar(
                [run[1] for run in noisy],
                [statistics.fmean(each) for each in values],
                [_deviation(each) for each in values],
                marker="o",
                color=colour,
                capsize=3,
                label=metric,
            )
            limit = statistics.fmean(_values(data, EXACT, metric))
            panel.axhline(limit, color=colour, linestyle=":", label=f"{metric}, no noise")
        shared = sorted(run for run in runs() if run[2] is not None)
        means = [statistics.fmean(_values(data, run, "own")) for run in shared]
        panel.plot([run[1] for run in shared], means, "s", color="C2", zorder=5, label="noise shared, own and union")
        ticks = [run[1] for run in noisy]
        panel.set(xscale="log", xlabel="epsilon", ylabel="test RSE", title=data, ylim=(0, None))
        panel.set_xticks(ticks, [f"{epsilon:g}" for epsilon in ticks])
        panel.minorticks_off()
        panel.legend(fontsize=8)
    figure.savefig(PICTURE, dpi=130, metadata={"results": digest()})
    plt.close(figure)
