"""Tests of the client for asyncio."""
