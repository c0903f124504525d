"""How far everybody's accumulation ends from the big batch; see `__main__`."""
