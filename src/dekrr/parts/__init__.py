"""The parts of a site's model beside the agreed one.

`local` is what a site adds at home: its level, a random intercept that leaves the sums of the shared part, and the
local part, fitted to its own rows, which weighs its learners against the other parts. `trees` fits boosted trees to a
site's rows, holds them as arrays and predicts with them.
"""
