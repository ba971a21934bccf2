"""The paper's tables and figures, redone: with its own settings, with honest ones, and with our method beside them."""
