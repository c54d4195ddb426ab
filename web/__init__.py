"""The web UI: pages as ES modules without a build step, and the libraries vendored for them."""
