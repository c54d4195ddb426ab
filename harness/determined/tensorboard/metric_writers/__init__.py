"""Writers for TensorBoard, by library."""
