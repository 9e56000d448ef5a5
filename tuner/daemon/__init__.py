"""The loop: jobs and what runs them, the lease, signals, systemd."""
