"""Preview: run a write tool in a transaction, describe its database changes, and roll back."""
