"""Property tests measure no time: the machine may be busy."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
