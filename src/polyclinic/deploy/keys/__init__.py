"""Who the server is and who may join: certificates and key pairs."""
