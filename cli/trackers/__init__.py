"""Other trackers of experiments: MLflow, TensorBoard and Weights & Biases. What they have is read here, and written."""
