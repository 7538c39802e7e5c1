"""What faces the network: the server, who may ask, how much, and what is downloaded."""
