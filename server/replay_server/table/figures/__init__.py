"""What happens to a table, recorded as it happens: nobody has to pass over all rows to answer a question."""
