"""Attacks of a curious neighbour on the rows of a site; a release must withstand them.

- `overhearing`: records the messages of a run. `views`: the attacker's knowledge, from these messages.
- `recovery`: rows from the features of single rows, that is, from the paper's exchange.
- `sums`: the attacks on sums. `members`: was a known row among them? `release`: what any two sums differ by.
- `campaign`: the attacks as experiments, with figures, on the sites of `scenes`.
"""
