"""The local server behind the page: timelines of any size, and the results of a run as they are."""
