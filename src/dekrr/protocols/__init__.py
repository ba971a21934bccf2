"""Node procedures: what one site does, as a generator that never touches a socket.

A procedure yields an outbox, a message for each neighbour it has something to say to, and is sent the inbox
of what its neighbours said in the same exchange. All sites of a run go through the same number of exchanges.
Who carries the messages is the business of `dekrr.networks`.

`dekrr.train` is the paper's Algorithm 1, line by line. The modules from the bottom up:

- `site`: a site, and the types of a procedure.
- `roll_call`: who is there; `masking`: sums that one site can read; `spanning_tree`: sums over all sites,
  masked or not; `preparation`: what columns become, and the units of rows.
- `run`: chooser, settings and policies in one object, and what a site has after each stage and at the end.
- `feature_choice`: how many features, which, and how they are told; `exchange`: sums, sums with noise, or the paper's
  rows; `cross_validation`: settings chosen from grids.
- `shared_part`, `dekrr`, `home`: the parts of a model; `calibration`: a second training; `training`: all of it.
- `looking`: before summing; `online`: after it; `baselines`: other methods.
"""
