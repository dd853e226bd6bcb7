"""Adapters to training libraries; each module imports only its own library."""
