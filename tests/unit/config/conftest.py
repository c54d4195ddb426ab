"""Makes the test modules importable: the schema tests reuse the configs of the others."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
