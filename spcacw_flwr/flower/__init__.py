"""The Flower skin: records, strategy, apps, streams, and the programs of a federation."""
