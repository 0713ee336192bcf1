"""Where texts come from, and the token sequences that are made of them or drawn."""
