"""Settings of the commands, from flags, environment variables and TOML files."""
