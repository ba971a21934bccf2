"""Data sets: of the paper, with readers and the authors' splits; and partitions of rows over sites."""
