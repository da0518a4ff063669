"""What people see of a run: progress, TensorBoard, the learning curve, the result."""
