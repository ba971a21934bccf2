"""Networks: they drive the sites' procedures and carry their messages."""
