"""The paper's tables and figures, redone: with its own settings, with honest settings, and with our method added."""
