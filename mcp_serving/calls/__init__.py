"""An optional Django app that stores the record of each call, and shows the calls in the admin."""
