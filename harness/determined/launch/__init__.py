"""Launchers for jobs of several workers: `python3 -m determined.launch.torch_distributed python3 train.py`."""
