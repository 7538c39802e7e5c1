"""What jobs made of roles (rollout, reward, actor, weight sync…) log of their steps, or leave as intervals."""
