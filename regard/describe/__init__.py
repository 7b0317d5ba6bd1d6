"""How models describe what they compute, and how they are exported."""
