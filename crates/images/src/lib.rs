//! OCI images made on the spot from local files: the pause image, the launcher image, the demo guest.
