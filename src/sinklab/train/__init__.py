"""How a model learns: optimisers, schedules."""
