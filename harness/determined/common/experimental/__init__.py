"""What `determined.experimental` consists of."""
