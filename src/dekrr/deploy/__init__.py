"""A site as a process: its files, its keys, its record and its status.

- `tables`: what network.toml and site.toml hold. `files`: reading and writing them. `checks`: what is wrong with them.
- `keys`: certificates. `refusals`: peers that fail in the TLS handshake.
- `node`: the process. `events`, `record`: what happened, in a log and in run.jsonl. `status`: how it is doing now.
"""
