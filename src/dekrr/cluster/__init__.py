"""One model on many machines of one owner: MPI and Dask.

- `rank_network`: the network whose sites the ranks of an MPI program drive; `rank_messages`: messages between ranks;
  `ranks`: commands on them.
- `spread`: the rows of a site in the partitions of a Dask DataFrame.
"""
