"""What gpuscope says of jobs for reinforcement learning whose truth is known: drawn ones, and a loop of our own."""
