"""How fast training is on this machine: tokens a second, share of its peak, start-up, memory."""
