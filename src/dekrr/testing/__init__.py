"""What tests a network of sites: faults that are drawn from a seed."""
