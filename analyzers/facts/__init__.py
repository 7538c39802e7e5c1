"""What several analyses of a run rest on, found once per run: `run_facts.RunFacts` holds all of it."""
