"""Draw the time of a fit against the number of sites, from the figures that `dekrr bench` keeps.

python benchmarks/sites.py --figures benchmarks/results/speed.json --out docs/many-sites.png
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=Path("benchmarks/results/speed.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/many-sites.png"))
    arguments = parser.parse_args()
    kept = [figure for figure in json.loads(arguments.figures.read_text())["figures"] if "a site" in figure["seconds"]]
    if not kept:
        raise SystemExit(f"{arguments.figures} has no fits of many sites: dekrr bench --only sites --out FILE")
    sites = [figure["settings"]["sites"] for figure in kept]
    seconds = [figure["seconds"]["fit"] for figure in kept]
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.loglog(sites, seconds, "o-", label="a fit")
    axes.loglog(sites, [seconds[0] * n / sites[0] for n in sites], ":", color="grey", label="in proportion to sites")
    axes.set(xlabel="sites", ylabel="seconds", title="Random 4-regular graphs, 200 rows a site, D = 100")
    axes.set_xticks(sites, map(str, sites))
    axes.legend()
    figure.savefig(arguments.out, dpi=150)
    print(f"picture: {arguments.out}")


if __name__ == "__main__":
    main()
