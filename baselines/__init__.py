"""The methods that SP-CACW is compared with: one file each, swapped by the key ``method``."""
