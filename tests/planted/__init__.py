"""Small real trainings, each with one planted cause of slow steps and a repaired twin.

``python -m tests.planted.evaluate`` measures without a profiler what the cause costs, and judges the findings by it.
"""
