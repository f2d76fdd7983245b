"""Stand-ins for two model servers and what is done with them. No model and no GPU are in any of this."""
