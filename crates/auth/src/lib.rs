//! Who asks and what they may do: the PKI, authentication by certificate and token, RBAC.
