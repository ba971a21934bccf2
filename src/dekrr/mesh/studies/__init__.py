"""Studies of standing sites: what is to be trained, who has approved it, its runs and its models.

- `study`: what a study says. `items`: signed statements of sites: proposals, decisions, calls for runs, reports.
- `book`: all statements that a site knows, on its disk. `versions`: a study's models.
- `gossip`: how sites pass statements on. `preview`: what a study would send, found out at the site alone.
"""
