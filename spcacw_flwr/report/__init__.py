"""The report of a run for people: ``report.html``, one file that loads nothing else.

It uses only the artefacts in the run's directory, so an old run can have a report too. ``read``
reads the files into tables. ``facts`` computes figures from the tables. ``sentences`` puts them
into words, ``pictures`` draws them, and ``page`` orders all of it and fills the template.
"""
