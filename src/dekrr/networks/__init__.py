"""Who drives node procedures and carries their messages."""
