"""The methods that SP-CACW is compared with, one file each. The key ``method`` selects one."""
