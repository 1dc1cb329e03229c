"""Settings of a recipe that are worth a start: `space` says what may be tried, `without_start`
leaves out what needs no start.
"""
