"""Attacks on servers and a learner, beside a bystander that must not notice them."""
