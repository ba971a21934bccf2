"""Write the pins of a deployment: versions and hashes of what pip would install, from pip's own report.

`make pins` runs it. The hashes are of the files for the machine and the Python that it runs on.
"""

import json
import platform
import sys
from pathlib import Path


def requirements(report):
    """Return the lines of a requirements file, name==version and the hash of the file; dekrr itself is not in."""
    lines = []
    for entry in report["install"]:
        name, version = entry["metadata"]["name"].lower().replace("_", "-"), entry["metadata"]["version"]
        archive = entry["download_info"].get("archive_info")
        if name == "dekrr":
            continue
        if archive is None:
            raise SystemExit(f"{name} {version} is not from a package index, and has no hash")
        lines.append(f"{name}=={version} \\\n    --hash=sha256:{archive['hashes']['sha256']}")
    return sorted(lines)


def main(source, target):
    """Read pip's report and write the pins."""
    lines = requirements(json.loads(Path(source).read_text()))
    python = ".".join(platform.python_version_tuple()[:2])
    head = (
        f"# Made by `make pins` for Python {python} on {platform.system()} {platform.machine()}.\n"
        "# The extras are mesh, dp and fast. Install by\n"
        "#     pip install --require-hashes --no-deps -r packaging/requirements.txt && pip install --no-deps .\n"
    )
    Path(target).write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
