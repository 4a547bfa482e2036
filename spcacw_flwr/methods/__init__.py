"""How the target uses the answers: the interface of methods, and SP-CACW itself."""
