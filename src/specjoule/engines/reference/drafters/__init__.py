"""Ways to draft. A new one is a module with a `Drafter` and one line in `factory.py`."""
