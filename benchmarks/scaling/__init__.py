"""How many servers a fleet needs: measured costs, a formula, and a simulation."""
