"""What Turnout remembers: rows, the todo graph, the session log and the errors. Imports nothing else of ours."""
