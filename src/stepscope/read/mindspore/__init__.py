"""What MindSpore writes on a CPU: a directory of text files."""
