"""What Turnout can do: hosts over SSH, jobs, files, GPUs, serving engines. Imports `state` only."""
