"""Lets actors in other processes and on other machines act for a learner."""
