"""Access control: tokens and certificates from files, for both services."""
