"""What pretraining by masked language modelling is worth to a classifier of SST-2."""
