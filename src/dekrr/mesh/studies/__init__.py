"""Studies of standing sites: who has approved what, its runs and its models.

- `items`: signed statements of sites: proposals, decisions, calls for runs, reports. `book`: all that a site knows.
  `gossip`: how sites pass them on.
- `in_words`, `describe`, `preview`: what a person should know before: the study, this site's rows, what would leave.
- `versions`: a study's models. `acceptance`: which are taken into use. `ends`, `outward`: how runs ended, and why, for
  this site's people and for other sites.
"""
