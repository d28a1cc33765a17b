//! The table of resources and their schemas: strict decoding, defaults, pruning, validation, printing, OpenAPI.
