"""Reports on a run: progress, TensorBoard, the learning curve, the result."""
