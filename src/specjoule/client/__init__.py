"""The streaming client between a server and the time stamps."""
