"""Writers for TensorBoard; what they write is copied to the checkpoint storage by `core.init()`."""
