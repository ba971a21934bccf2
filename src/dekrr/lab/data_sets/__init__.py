"""Data sets: of the paper, with readers and the authors' splits; made-up sites; and partitions of rows over sites."""
