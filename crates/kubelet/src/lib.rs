//! The node agent: pods over CRI, devices, volumes, admission, status, logs and exec.
