"""Pictures, drawn with matplotlib; each function returns a `Chart`, which shows itself and carries
its alternative text to the page.

`published` draws what sources say of recipes, `hardware` what the first chapters compute, `serving`
what a running engine did, `logs` what its log timed. How they look is `book.mplstyle`, in light;
`style` knows the colours for dark and makes an SVG of both.
"""
