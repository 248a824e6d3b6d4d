"""Several processes that train as one: ranks, gradients, sharding."""
