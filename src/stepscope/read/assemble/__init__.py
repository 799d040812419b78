"""Parts of one rank become complete tables on one time line."""
