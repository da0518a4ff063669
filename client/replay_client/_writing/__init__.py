"""How rows reach a table: streams of experience, delivery of blocks, single inserts."""
