"""The rooms of the lab: each module has the routes of one room, below `/api`."""
