//! Durations in Go's notation, as KubeVirt's options and specs have them; none is below zero.

pub(crate) use carrack_types::duration::parse_unsigned as go_duration;
