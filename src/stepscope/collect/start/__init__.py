"""The ways to start a recording: code, command, environment, an edited file, and the names of other profilers."""
