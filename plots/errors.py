"""Errors of plots/ that the user can mend; each is printed as one line."""


class ResultsError(Exception):
    """A file, a setting or a table that cannot be used, and what to do."""


class Unjoinable(ResultsError):
    """Two folders have no figure together."""
