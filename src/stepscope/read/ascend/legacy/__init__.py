"""The profiler folder of MindSpore 1.x."""
