"""The rehearsal: run a job on this machine as a site would, without a network."""
