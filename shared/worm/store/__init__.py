"""The only room that talks to object storage."""
