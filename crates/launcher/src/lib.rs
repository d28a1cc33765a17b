//! virt-launcher: starts QEMU in the pod, speaks QMP, and answers the handler.
