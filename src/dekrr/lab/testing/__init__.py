"""Tests of a network of sites under random faults, which are drawn from a seed."""
