"""A database engine without transactions."""

from django.db.backends.sqlite3 import base, features


class DatabaseFeatures(features.DatabaseFeatures):
    supports_transactions = False


class DatabaseWrapper(base.DatabaseWrapper):
    features_class = DatabaseFeatures
