"""The contract, refusals and hostile bytes."""
