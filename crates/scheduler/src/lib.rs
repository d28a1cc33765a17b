//! Where a pod runs: queue, cache with assumed pods, filters and scores.
