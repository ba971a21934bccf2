"""The commands `attack`, `bench`, `compare`, `demo`, `report` and `reproduce`."""
