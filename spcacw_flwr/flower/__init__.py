"""The Flower skin.

The target's side is ``strategy``, ``server_app``, ``discovery`` and ``grid``; a silo's is
``client_app``, ``silo`` and ``mods``; ``records`` has the words of their conversation. In streams,
``frames`` cuts messages, ``service`` is the target's end, ``asker`` what the loop asks, and
``invitations`` how Flower brings nodes there. ``processes`` and ``launch`` run Flower's programs;
``certificates``, ``federation`` and ``deploy`` a federation of real silos.
"""
