"""The command line."""

import sys


def main() -> None:
    """Run `dekrr`."""
    try:
        from .app import run
    except ImportError as error:
        sys.exit(f"the command line needs a package that is not installed ({error.name}): pip install 'dekrr[cli]'")
    run()
