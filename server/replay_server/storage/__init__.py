"""Tables as directories of mapped files."""
