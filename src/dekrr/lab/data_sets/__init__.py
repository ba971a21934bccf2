"""The data sets of the paper: a catalogue, readers of their files, the authors' splits, and a picture of sites."""
