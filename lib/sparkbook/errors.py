"""The one error that a user of the library or the command can cause."""


class SparkbookError(Exception):
    """Something the user asked for cannot be done.

    The message says what was wrong, where, and what to do about it. The command line prints it
    without a traceback and exits with 2. Subclasses exist only where a caller has to tell one
    failure from another.
    """
