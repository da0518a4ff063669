"""Who may call: tokens and certificates in files, for both services of the contract."""
