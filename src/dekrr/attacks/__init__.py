"""What a neighbour who wants the rows can do with what it hears: the attacks that a release must withstand.

`overhearing` keeps the messages of a run, `views` makes of them what an attacker knows, `features` goes after features
of single rows (the paper's exchange), `sums` and `lattice` after sums, `campaign` has the attacks as experiments with
figures on the sites of `problems`, and `audit` checks the promise of differential privacy.
"""
