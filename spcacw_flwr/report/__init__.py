"""The report of a run for people: ``report.html``, one file with nothing to fetch.

It is made from the artefacts in the run's directory alone, so that an old run has one too:
``read`` makes tables of the files, ``facts`` figures of the tables; ``sentences`` say them in plain
language, ``pictures`` draw them, and ``page`` orders it all and fills the ``template``.
"""
