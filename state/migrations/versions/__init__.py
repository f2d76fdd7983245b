"""One file a step of the schema, in order of their numbers."""
