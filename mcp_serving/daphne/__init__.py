"""Daphne: a server with limits for callers to build, and the transport that runs the caller's server."""

from mcp_serving.daphne.server import Server

__all__ = ["Server"]
