"""The loop: command line, playbook loader, core, dispatcher. Imports `tools` and `state`."""
