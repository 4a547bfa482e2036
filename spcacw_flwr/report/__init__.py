"""The report of a run for people: ``report.html``, one file with nothing to fetch.

It is made from the artefacts in the run's directory alone, so that an old run has one too:
``read`` makes tables of the files, ``facts`` figures of the tables; ``verdict``, ``who``, ``when``,
``apart`` and ``account`` say them in plain language, ``pictures`` draws them; ``sections`` orders
it all, and ``page`` fills the ``template``.
"""
