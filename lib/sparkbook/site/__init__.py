"""From notebooks to a site: running the chapters, one page per recipe, and publishing them.

    python -m sparkbook.site build       # what `make book` calls
    python -m sparkbook.site refresh     # run the committed notebooks again, in place
    python -m sparkbook.site check       # links, anchors and outside loads of the built site

This package sits above the library (floor 6): it uses it, nothing in the library uses this.
papermill and Sphinx are imported where they are needed and not before, so that a build with nothing
to do ends at once.
"""
