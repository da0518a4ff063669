"""The logic of tables on several servers, without I/O."""
