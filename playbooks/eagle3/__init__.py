"""Train an EAGLE-3 drafter for a target and predict what it will be worth: `playbook.yaml` and its payload."""
