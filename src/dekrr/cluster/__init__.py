"""One model on many machines of one owner: MPI and Dask.

- `mpi`: the network whose sites are driven by the ranks of an MPI program; `rank_messages`, `handover`: messages
  between ranks and within one.
- `spread`: the rows of a site in the partitions of a Dask DataFrame.
"""
