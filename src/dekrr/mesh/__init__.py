"""A site as a process, which takes part in a single run, or stays and takes part in studies that its people approve.

- What people write: `config` has the contents of their files, `checks` the validation, `files` reading and writing;
  `policy` says which studies a site takes part in. `commands`: what they type.
- Who is who: `keys`, `identity`. Links: `addresses`, `carrier`, `sealing`; `tls_refusals` reports failed handshakes.
- A run: `node` is a site's part in it, `procedure` what it computes, `driving` carries frames of its `session`,
  which does no I/O, and asks `reading` about messages. `after_loss`: a run without a site that is lost.
- A site's rows: `site_rows`, and `new_rows` of a source. `ledger`: which were in the sums of earlier runs. `vault`: the
  release of a private run.
- A standing site: `standing`, its `studies`, and `study_run` for each run; `store` is what it remembers, `clock` its
  time, `witness` what it writes to `audit_trail`; `reveals` says what messages tell, and `audit_page` shows all that.
- To watch a site: `record` has its events, in a log and in run.jsonl, `status` its state; `page` and `monitoring` show
  them. `standard_error`: the log outlives its reader.
- `prototype`: a deployment in one process, for an estimator with deployment=True.
"""
