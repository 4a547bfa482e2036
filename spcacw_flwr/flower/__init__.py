"""The Flower layer of the package.

The target's side is ``strategy``, ``server_app``, ``discovery`` and ``grid``; a silo's side is
``client_app``, ``silo``, ``account``, ``node``, ``policy`` and ``mods``; ``records`` has their
protocol. For streams, ``frames`` cuts messages, ``service`` is the target's end, ``asker`` puts the
training loop's questions, and ``invitations`` brings nodes there. ``processes`` and ``launch`` run
Flower's programs. ``certificates``, ``members``, ``joining``, ``hosts``, ``federation`` and
``deploy`` run a federation of real silos. ``audit``, ``auditing`` and ``monitor`` watch it.
"""
