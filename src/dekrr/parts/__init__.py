"""The parts of a site's model beside the agreed one.

`level` is the site's random intercept, from sums. `trees` are boosted trees as arrays, `boosting` fits them to a site's
rows. `local` is the part that a site fits to its own rows and keeps; it weighs its trees against the other parts.
"""
