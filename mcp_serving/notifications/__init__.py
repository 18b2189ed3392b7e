"""Telling clients that something has changed."""
