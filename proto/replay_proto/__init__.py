"""What both ends of the replay service share: the contract's generated code, the schema, the framing, the errors."""
