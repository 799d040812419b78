"""The text files of Ascend's layout."""
