"""The version, in one place: the package's metadata and every report take it from here."""

__version__ = "0.1.0"
