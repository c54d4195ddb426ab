"""Measurements of what the project promises. `python -m bench [name …]`; not part of the tests."""
