"""Methods that give all sites the same features: AllReduce, and DKLA with COKE."""
