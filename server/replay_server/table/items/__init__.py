"""The items that a table draws: single rows, or windows of steps."""
