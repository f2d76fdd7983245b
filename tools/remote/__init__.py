"""The remote half: standard library only, Python 3.8 and newer, sent to a host as one file by content hash."""
