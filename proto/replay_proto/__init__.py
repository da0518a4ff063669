"""Code shared by client and server: generated protocol code, schemas, framing and errors."""
