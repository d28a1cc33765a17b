//! A cluster in one thread under one seed: the real cores and API server, simulated everything else.
