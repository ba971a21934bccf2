"""Attacks of a curious neighbour on the rows of a site; a release must withstand them.

- `overhearing`: records the messages of a run. `views`: the attacker's knowledge, from these messages.
- `features`: the attack on features of single rows, that is, on the paper's exchange.
- `sums`, `lattice`: the attacks on sums.
- `campaign`: the attacks as experiments, with figures, on the sites of `problems`.
- `audit`: the check of a guarantee of differential privacy.
"""
