"""Files and folders: made durable, mapped, swept, and safe from other users."""
