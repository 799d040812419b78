"""Stacks and their times in the formats of other viewers: speedscope, pprof, Firefox Profiler, flame graphs."""
