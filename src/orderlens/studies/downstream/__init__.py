"""What graded runs say about the trace and correctness, as a folder of results."""
