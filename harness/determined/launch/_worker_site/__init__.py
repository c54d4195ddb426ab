"""On the PYTHONPATH of the workers: what their Pythons do first."""
