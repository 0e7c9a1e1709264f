"""Several hosts on one machine: network namespaces on a bridge, each with its own address, name, processes and sshd."""
