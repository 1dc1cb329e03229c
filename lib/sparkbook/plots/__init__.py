"""Pictures, drawn with matplotlib; each function returns a `Chart`, which shows itself and carries its alternative text to the page.

`published` draws what sources say of recipes, `hardware` what the first chapters compute, `serving` what a running engine did, `logs`
what its log timed.
Charts stand on a white card, so that they read the same on a light and on a dark page.
"""
