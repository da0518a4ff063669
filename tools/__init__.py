"""Programs that try to break the service for minutes: kills, broken networks, hostile messages, attacks, soaks."""
