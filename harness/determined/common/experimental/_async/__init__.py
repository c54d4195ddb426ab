"""The sources of the SDK: `python -m harness.twins` makes the synchronous modules beside this folder of them."""
