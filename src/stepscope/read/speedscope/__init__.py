"""Profiles in the format of speedscope, which py-spy, rbspy, pyinstrument and others write."""
