"""What tests share: server processes, a caller of the contract, rows that tell whether they are whole."""
