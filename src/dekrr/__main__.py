"""`python -m dekrr` is `dekrr`."""

from .cli import main

if __name__ == "__main__":
    main()
