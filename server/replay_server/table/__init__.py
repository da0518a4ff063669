"""One table: which rows are live, how they are drawn, and what changes together."""
