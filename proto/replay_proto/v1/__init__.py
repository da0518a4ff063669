"""Generated from proto/replay/v1 by `make proto`; never edited."""
