"""Tests of the integrations, with the real libraries."""
