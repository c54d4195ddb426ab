"""Steps of a program: each is tried, whether or not the one before it went well, and told as a line of JSON."""

import json
import time
import traceback


def step(name):
    """Run the function at once; its result is what its name then means (None if it failed)."""

    def run(function):
        result, error, began = None, None, time.monotonic()
        try:
            result = function()
        except Exception:  # noqa: BLE001 - whatever the client raises is what we want to know
            error = traceback.format_exc(limit=-3)
        print("STEP " + json.dumps({"name": name, "error": error, "seconds": time.monotonic() - began}), flush=True)
        return result

    return run


def same(found, expected):
    """Complain unless they are equal."""
    assert found == expected, f"expected {expected!r}, got {found!r}"
