"""A SuperNode that has this on its path says that it lives as often as a SuperLink allows.

Flower misses a node after two beats: after 20 seconds here, and a minute by default.
"""

import flwr.common.constant

flwr.common.constant.HEARTBEAT_DEFAULT_INTERVAL = flwr.common.constant.HEARTBEAT_MIN_INTERVAL
