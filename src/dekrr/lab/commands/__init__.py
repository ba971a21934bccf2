"""The commands `attack`, `bench`, `report` and `reproduce`."""
