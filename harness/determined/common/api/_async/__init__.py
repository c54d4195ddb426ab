"""The sources of the client: `python -m harness.twins` makes the synchronous modules beside this folder of them."""
