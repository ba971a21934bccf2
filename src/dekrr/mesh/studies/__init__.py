"""Studies of standing sites: who has approved what, its runs and its models.

- `items`: signed statements of sites: proposals, decisions, calls for runs, reports. `book`: all that a site knows.
  `gossip`: how sites pass them on.
- `in_words`, `describe`, `preview`: what a person should know before: the study, this site's rows, what would leave.
- `versions`: a study's models. `model_gate`: which are taken into use. `run_endings`: how runs ended, for this site's
  people; `failure_reports`: what other sites are told of a run that failed.
"""
