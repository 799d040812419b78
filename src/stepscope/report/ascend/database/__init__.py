"""The databases of Ascend's layout."""
