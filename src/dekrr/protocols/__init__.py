"""Node procedures: what one site does, as a generator that never touches a socket.

A procedure yields an outbox, a message for each neighbour it has something to say to, and is sent the inbox
of what its neighbours said in the same exchange. All sites of a run go through the same number of exchanges.
Who carries the messages is the business of `dekrr.networks`.

`dekrr.train` is the paper's Algorithm 1, line by line. The modules from the bottom up:

- `site`: a site, and the types of a procedure; `stages`: what a site has after each stage of a run.
- `roll_call`, `census`, `roster`: who is there; `preparation`: the units of rows; `spanning_tree`: sums over all sites;
  `stopping`: when all stop; `wire`: how coefficients travel.
- `run`: chooser, settings and policies in one object; `offers`: maps offered, proved and checked; `choosing`: how many
  features, and which; `exchange`: sums, sums with noise, or the paper's rows; `rounds`: the iteration.
- `tuning`, `cross_validation`, `scoring`: settings chosen from grids.
- `dekrr`, `online`, `baselines`: the procedures; `outcome`: what they return; `reading`: what a mesh must know of
  messages.
"""
