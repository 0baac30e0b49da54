"""The parameter agent: between the programs of one host and the servers of the cluster."""
