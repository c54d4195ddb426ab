"""Makes `search_bench` importable: the tests of this folder share it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
