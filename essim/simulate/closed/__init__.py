"""Sweeps in closed form: a step is priced at few contexts, and summed exactly between them."""
