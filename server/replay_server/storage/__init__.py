"""Tables as directories of mapped files: what is stored, in which order, and how it is found again."""
