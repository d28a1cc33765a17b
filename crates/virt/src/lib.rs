//! Virtual machines: the VM and VMI controllers, the node agent virt-handler, and their API subresources.
