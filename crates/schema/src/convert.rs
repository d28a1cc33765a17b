//! Conversion between versions of built-in kinds.
