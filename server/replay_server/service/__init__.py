"""The RPCs: what arrives is parsed and checked here, handed to the tables, and answered."""
