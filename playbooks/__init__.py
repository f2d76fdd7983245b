"""The playbooks that ship with Turnout: data and payloads, loaded and never imported."""
