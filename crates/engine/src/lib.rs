//! The decision contract: time, informers, work queue, the read-your-writes barrier, plans, and the shell that runs cores.
