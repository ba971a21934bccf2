"""A site as a process: its files, its keys, its record and its status.

- `tables`: the contents of network.toml and site.toml. `files`: reading and writing them. `checks`: their validation.
- `keys`: certificates. `refusals`: reports of failed TLS handshakes.
- `carrier`: links over Zenoh. `network`, `session`: a run over them, its course without I/O. `commands`: commands.
- `ledger`: which rows were in the sums of earlier runs. `vault`: the release of a private run. `after_loss`: a run
  without a site that is lost. `reading`: what a session must know of messages.
- `node`: the process. `events`, `record`: its events, in a log and in run.jsonl. `status`: its current state.
"""
