"""The layout of Ascend's deliverables."""
